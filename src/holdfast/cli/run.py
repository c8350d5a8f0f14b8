"""`holdfast run`: a job, with what it does shown while it does it."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.cli.displays import Display, JsonLines, LivePanel, PlainLines
from holdfast.cli.http import Http, HttpTokenFile, run_beside
from holdfast.cli.load_job import load_job
from holdfast.cli.options import AppFile, AsJson, JobName, Verbose, one_line_errors
from holdfast.cli.terminal_guard import LogFile, own_console
from holdfast.clock import SystemClock
from holdfast.errors import DefinitionError, SessionLost
from holdfast.runtime.restart_strategy import (
    ExponentialDelay,
    FailureRate,
    FixedDelay,
    NoRestart,
    RestartStrategy,
)

RESTARTS: dict[str, type[RestartStrategy]] = {
    "none": NoRestart,
    "fixed-delay": FixedDelay,
    "failure-rate": FailureRate,
    "exponential-delay": ExponentialDelay,
}


Checkpoint = Annotated[
    str, typer.Option(help="Where to keep the checkpoint: a directory, s3://, gs://, az://.")
]
Guarantee = Annotated[str, typer.Option(help="exactly-once, at-least-once or at-most-once.")]
Until = Annotated[str, typer.Option(help="stopped, or exhausted: end when the sources have no more.")]
CheckpointInterval = Annotated[
    str | None, typer.Option(help="Least time between commits, such as 5s. [default: every epoch]")
]
EpochInterval = Annotated[
    str | None,
    typer.Option(help="Least time between epochs, such as 500ms. [default: as fast as it goes]"),
]
BarrierInterval = Annotated[
    str | None,
    typer.Option(help="Of a job in parts: how often a barrier goes through all of them, such as 1m."),
]
StopWithin = Annotated[
    str,
    typer.Option(
        help="How long a stop (also SIGTERM, Ctrl-C) waits for sinks to show what is committed; then the run "
        "ends with code 7, and the next start shows the rest."
    ),
]
Survive = Annotated[
    int, typer.Option(help="How many nodes may end at once: a job that lacks something for that is refused.")
]
MaxRowsPerEpoch = Annotated[int | None, typer.Option(help="[default: found by itself]")]
TargetLatency = Annotated[
    str | None,
    typer.Option(
        help="How long a row may take from its arrival to the sinks, such as 2s: epochs are sized by that. "
        "[default: epochs take about a second]"
    ),
]
Parallelism = Annotated[
    str | None,
    typer.Option(
        help="How many shards; auto: as many as there are cores. [default: as before, or one per core]"
    ),
]
KeyGroups = Annotated[int, typer.Option(help="Fixed when the checkpoint is created.")]
Backend = Annotated[str, typer.Option(help="Where working state lives.")]
Restart = Annotated[
    str,
    typer.Option(
        help="none, fixed-delay, failure-rate or exponential-delay, with settings: "
        "'fixed-delay attempts=3 delay=10s'."
    ),
]
FromSavepoint = Annotated[
    str | None, typer.Option(help="Begin a new checkpoint with the state of this savepoint.")
]
Claim = Annotated[
    bool, typer.Option("--claim", help="Take the savepoint over: its sinks go on, its files are removed.")
]
AllowDroppedState = Annotated[
    bool,
    typer.Option("--allow-dropped-state", help="Give up stored state that the job no longer declares."),
]
Retain = Annotated[int, typer.Option(help="How many commits to keep.")]
WorkingDir = Annotated[
    Path | None,
    typer.Option(help="Local disk for working state. [default: HOLDFAST_WORKING_DIR, or temporary]"),
]
Master = Annotated[str | None, typer.Option(help="The Spark master, such as local[4].")]


def run(
    file: AppFile,
    checkpoint: Checkpoint,
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
    job: JobName = None,
    json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Run a job. Killed at any moment and started again, it goes on exactly where it was."""
    with one_line_errors(verbose), _display(json) as display:
        if master is not None:
            choose_master(master)
        declared = load_job(file, job)
        try:
            run_beside(
                http, http_token_file, declared, checkpoint,
                guarantee=guarantee, until=until, checkpoint_interval=checkpoint_interval,
                epoch_interval=epoch_interval, barrier_interval=barrier_interval,
                stop_within=stop_within, survive=survive,
                max_rows_per_epoch=max_rows_per_epoch, target_latency=target_latency,
                parallelism=parallelism_of(parallelism), key_groups=key_groups, backend=backend,
                restart=restart_of(restart), from_savepoint=from_savepoint, claim=claim,
                allow_dropped_state=allow_dropped_state, retain=retain, working_dir=working_dir,
                on_progress=display.progress, on_message=display.message,
            )  # fmt: skip
        except SessionLost as lost:
            start_again(display, lost)


def restart_of(text: str) -> RestartStrategy:
    """The strategy that a text such as `fixed-delay attempts=3 delay=10s` names."""
    name, *settings = text.replace(",", " ").split() or [""]
    kind = RESTARTS.get(name)
    if kind is None:
        raise DefinitionError(f"there is no restart strategy {name!r}; choose one of {', '.join(RESTARTS)}")
    given = dict(setting.partition("=")[::2] for setting in settings)
    fields: dict[str, Any] = kind.__dataclass_fields__
    if unknown := sorted(given.keys() - fields.keys()):
        known = ", ".join(fields) or "none"
        raise DefinitionError(f"{name} has no setting {unknown[0]!r}; its settings: {known}")
    return kind(**{key: _number(name, key, value, fields[key].default) for key, value in given.items()})


def _number(strategy: str, key: str, text: str, default: object) -> Any:
    """The value of a setting, of the kind that its default has."""
    if isinstance(default, str):
        return text
    try:
        return float(text) if isinstance(default, float) else int(text)
    except ValueError:
        raise DefinitionError(f"{strategy} {key}={text!r} is not a number; write one") from None


def parallelism_of(text: str | None) -> Any:
    if text is None or text == "auto":
        return text
    if not text.isdecimal():
        raise DefinitionError(f"parallelism={text!r} is not a number of shards; write one, or auto")
    return int(text)


def start_again(display: Display, lost: SessionLost) -> None:
    """PySpark starts one JVM per process: when that has died, the process starts again, under its old pid."""
    display.message(f"{str(lost).partition(';')[0]}: this process starts again")
    display.__exit__(type(lost), lost, None)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _display(as_json: bool) -> Display:
    if as_json:
        return JsonLines(sys.stdout, SystemClock())
    console = own_console()
    if console is None:
        return PlainLines(sys.stderr, SystemClock())
    return LivePanel(console, SystemClock(), LogFile())


def choose_master(master: str) -> None:
    """Before there is a session, Spark's own variable is the public way to say it."""
    given = os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell")
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--master {shlex.quote(master)} {given}"
