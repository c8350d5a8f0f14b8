"""`holdfast node | handover | zookeeper`: jobs on several nodes, of which one at a time runs each."""

from __future__ import annotations

import json as json_module
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from holdfast.admin.cluster import hand_over, visit
from holdfast.cli.displays import JsonLines, PlainLines
from holdfast.cli.http import Http, HttpTokenFile, answering
from holdfast.cli.load_job import load_jobs
from holdfast.cli.options import AppFile, AsJson, Verbose, one_line_errors
from holdfast.cli.run import (
    AllowDroppedState,
    Backend,
    BarrierInterval,
    Checkpoint,
    CheckpointInterval,
    Claim,
    EpochInterval,
    FromSavepoint,
    Guarantee,
    KeyGroups,
    Master,
    MaxRowsPerEpoch,
    Parallelism,
    Restart,
    Retain,
    StopWithin,
    Survive,
    TargetLatency,
    Until,
    WorkingDir,
    choose_master,
    parallelism_of,
    restart_of,
    start_again,
)
from holdfast.clock import SystemClock, duration_ms
from holdfast.cluster.zookeeper import ZooKeeperSettings
from holdfast.errors import DefinitionError, SessionLost
from holdfast.nodes.node import Node
from holdfast.nodes.registration import NodeSettings
from holdfast.nodes.zookeeper_server import ZooKeeperServer
from holdfast.runtime.job import stopping_on_signals
from holdfast.runtime.settings import RunOptions

AUTH_VARIABLE = "HOLDFAST_ZOOKEEPER_AUTH"

Cluster = Annotated[str, typer.Option(help="The name of the cluster.")]
Hosts = Annotated[str, typer.Option("--zookeeper", metavar="HOSTS", help="host1:2181,host2:2181,...")]
AuthFile = Annotated[
    Path | None,
    typer.Option("--zookeeper-auth-file", help=f"A file with user:password. [default: ${AUTH_VARIABLE}]"),
]
Tls = Annotated[bool, typer.Option("--zookeeper-tls", help="Encrypt the connection to ZooKeeper.")]
TlsCa = Annotated[str | None, typer.Option("--zookeeper-ca", help="Who signs ZooKeeper's certificate.")]
TlsCertificate = Annotated[str | None, typer.Option("--zookeeper-cert", help="The node's own certificate.")]
TlsKey = Annotated[str | None, typer.Option("--zookeeper-key", help="The key of --zookeeper-cert.")]
Jobs = Annotated[
    list[str] | None, typer.Option("--job", help="Which jobs, if not all that the file declares.")
]
SessionTimeout = Annotated[
    str, typer.Option(help="After how long without a word another node takes the seat.")
]
Standby = Annotated[str, typer.Option(help="cold, warm (Spark is started), or hot (state follows too).")]
ResignAfter = Annotated[str, typer.Option(help="After how long without a commit a leader gives up its seat.")]

AllowOtherCode = Annotated[bool, typer.Option("--allow-other-code", help="Upgrade by taking over.")]
MoveCheckpoint = Annotated[
    bool, typer.Option("--move-checkpoint", help="Take the checkpoint from a cluster that is no more.")
]


def node(
    file: AppFile,
    cluster: Cluster,
    zookeeper: Hosts,
    checkpoint: Checkpoint,
    name: Annotated[str, typer.Option(help="[default: host and process]")] = "",
    standby: Standby = "cold",
    session_timeout: SessionTimeout = "10s",
    resign_after: ResignAfter = "60s",
    allow_other_code: AllowOtherCode = False,
    move_checkpoint: MoveCheckpoint = False,
    zookeeper_auth_file: AuthFile = None,
    zookeeper_tls: Tls = False,
    zookeeper_ca: TlsCa = None,
    zookeeper_cert: TlsCertificate = None,
    zookeeper_key: TlsKey = None,
    guarantee: Guarantee = "exactly-once",
    until: Until = "stopped",
    checkpoint_interval: CheckpointInterval = None,
    epoch_interval: EpochInterval = None,
    barrier_interval: BarrierInterval = None,
    stop_within: StopWithin = "20s",
    survive: Survive = 0,
    max_rows_per_epoch: MaxRowsPerEpoch = None,
    target_latency: TargetLatency = None,
    parallelism: Parallelism = None,
    key_groups: KeyGroups = 128,
    backend: Backend = "lmdb",
    restart: Restart = "exponential-delay",
    from_savepoint: FromSavepoint = None,
    claim: Claim = False,
    allow_dropped_state: AllowDroppedState = False,
    retain: Retain = 10,
    working_dir: WorkingDir = None,
    http: Http = None,
    http_token_file: HttpTokenFile = None,
    master: Master = None,
    job: Jobs = None,
    json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Be a node of a cluster: run the jobs whose seats are free, stand by for the others."""
    with one_line_errors(verbose):
        reached = reached_by(
            zookeeper, zookeeper_auth_file, session_timeout,
            zookeeper_tls, zookeeper_ca, zookeeper_cert, zookeeper_key,
        )  # fmt: skip
        settings = NodeSettings(
            cluster=cluster, zookeeper=reached, name=name, standby=standby, move_checkpoint=move_checkpoint,
            resign_seconds=duration_ms(resign_after) / 1_000, allow_other_code=allow_other_code,
        )  # fmt: skip
        options = RunOptions(
            guarantee=guarantee, until=until, checkpoint_interval=checkpoint_interval, survive=survive,
            epoch_interval=epoch_interval, barrier_interval=barrier_interval, stop_within=stop_within,
            max_rows_per_epoch=max_rows_per_epoch, target_latency=target_latency, key_groups=key_groups,
            parallelism=parallelism_of(parallelism), backend=backend, restart=restart_of(restart),
            from_savepoint=from_savepoint, claim=claim, allow_dropped_state=allow_dropped_state,
            retain=retain, working_dir=working_dir,
        )  # fmt: skip
        _be_node(file, job or [], checkpoint, settings, options, master, http, http_token_file, as_json=json)


def _be_node(
    file: Path,
    names: list[str],
    checkpoint: str,
    settings: NodeSettings,
    options: RunOptions,
    master: str | None,
    http: str | None,
    token_file: Path | None,
    *,
    as_json: bool,
) -> None:
    if master is not None:
        choose_master(master)
    clock = SystemClock()
    with (
        JsonLines(sys.stdout, clock) if as_json else PlainLines(sys.stderr, clock) as display,
        answering(http, token_file, display.message) as answer,
    ):
        jobs = load_jobs(file, names)
        one = Node(jobs, checkpoint, settings, options, display.message, display.progress)
        answer(one.jobs)
        try:
            with stopping_on_signals(one.leave, lambda: one.told_to_leave):
                one.run()
        except SessionLost as lost:
            start_again(display, lost)


def handover(
    cluster: Cluster,
    zookeeper: Hosts,
    job: Annotated[str | None, typer.Option(help="Whose seat, if the cluster has several.")] = None,
    to: Annotated[str | None, typer.Option(metavar="NODE", help="[default: whoever is readiest]")] = None,
    timeout: Annotated[str, typer.Option(help="How long to wait, such as 30s or 10m.")] = "2m",
    zookeeper_auth_file: AuthFile = None,
    zookeeper_tls: Tls = False,
    zookeeper_ca: TlsCa = None,
    zookeeper_cert: TlsCertificate = None,
    zookeeper_key: TlsKey = None,
    json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Let another node go on with a job: its holder stops after its epoch and gives the seat up."""
    with one_line_errors(verbose):
        clock, seconds = SystemClock(), duration_ms(timeout) / 1_000
        reached = reached_by(
            zookeeper, zookeeper_auth_file, "10s", zookeeper_tls, zookeeper_ca, zookeeper_cert, zookeeper_key
        )
        with visit(reached, cluster, clock) as visited:
            done = hand_over(visited, job, to, clock, seconds)
        if json:
            print(json_module.dumps(asdict(done)))
        else:
            print(f"{done.job}: handed over from {done.giver} to {done.taker} in {done.seconds:.1f} s")


def zookeeper(
    port: Annotated[int, typer.Option(min=1, max=65_535)] = 2181,
    data_dir: Annotated[Path, typer.Option(help="Where it keeps its data.")] = Path("zookeeper"),
    verbose: Verbose = False,
) -> None:
    """Run a real ZooKeeper server on this machine, for development: one server, loopback only."""
    with one_line_errors(verbose):
        server = ZooKeeperServer(data_dir, port)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: server.ask_to_end())
        server.start()
        print(
            f"ZooKeeper answers at {server.hosts}, data and log in {server.data_dir}; Ctrl-C ends it",
            flush=True,
        )
        server.wait()


def reached_by(
    hosts: str,
    auth_file: Path | None,
    session_timeout: str,
    tls: bool,
    ca: str | None,
    certificate: str | None,
    key: str | None,
) -> ZooKeeperSettings:
    """How a command reaches ZooKeeper, by its options."""
    user, password = _auth(auth_file)
    return ZooKeeperSettings(
        hosts=hosts,
        session_seconds=duration_ms(session_timeout) / 1_000,
        user=user,
        password=password,
        tls=tls or ca is not None or certificate is not None,
        tls_ca=ca,
        tls_certificate=certificate,
        tls_key=key,
    )


def _auth(file: Path | None) -> tuple[str, str]:
    """User and password, from a file or the environment: a command line can be read by others."""
    given = os.environ.get(AUTH_VARIABLE, "")
    if file is not None:
        try:
            given = file.read_text().strip()
        except (OSError, UnicodeDecodeError) as cause:
            raise DefinitionError(f"{file} cannot be read ({cause}); check the file") from cause
    user, colon, password = given.partition(":")
    if given and not (user and colon):
        raise DefinitionError(
            f"{file or '$' + AUTH_VARIABLE} does not hold user:password; write it like that"
        )
    return user, password
