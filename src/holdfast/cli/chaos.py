"""`holdfast chaos`: a user's own job under a nemesis, and the verdict on what it left behind."""

from __future__ import annotations

import importlib
import os
import random
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from holdfast.chaos.campaign import Campaign, Check, Report, Wish
from holdfast.chaos.checker import Verdict
from holdfast.chaos.evidence import sink_shapes
from holdfast.chaos.faults import CLUSTER_ONLY, DRIVER_STEPS, Kind, usual_kinds
from holdfast.chaos.history import Event, bound
from holdfast.chaos.inside.child import LifeSettings
from holdfast.chaos.round import Stage
from holdfast.chaos.spark_cluster import Cluster
from holdfast.cli.format import print_json
from holdfast.cli.load_job import load_job
from holdfast.cli.options import AppFile, AsJson, JobName, Verbose, one_line_errors
from holdfast.connectors.generator import GeneratorSource
from holdfast.errors import DefinitionError
from holdfast.graph.guarantees import check_guarantee
from holdfast.graph.validate import check
from holdfast.runtime.job import Job
from holdfast.steps import Step

EXIT_CODES = {Verdict.TRUE: 0, Verdict.FALSE: 1, Verdict.UNKNOWN: 6}
TOLD = ("round", "round-end", "fault", "missed", "end", "verdict")


Kinds = Annotated[
    str | None,
    typer.Option(help=f"Only these, separated by commas: {', '.join(Kind)}. [default: all but damage-file]"),
]
Steps = Annotated[
    str | None, typer.Option(help="For kill-driver-at-step: only these, separated by commas. [default: all]")
]
Master = Annotated[
    str, typer.Option(help="The Spark master; the second number is how often a task is tried.")
]
Workers = Annotated[
    int, typer.Option(min=0, max=8, help="Start a real cluster with this many workers instead.")
]
CheckBy = Annotated[
    str | None,
    typer.Option(
        "--check", metavar="MODULE:FUNCTION", help="Also judge by this: (reference, round) -> list."
    ),
]
Out = Annotated[
    Path | None, typer.Option(help="An empty directory for all of it. [default: chaos-, with the time]")
]


def chaos(
    file: AppFile,
    minutes: Annotated[float, typer.Option(min=0.1, help="How long to inject faults.")] = 5.0,
    seed: Annotated[int | None, typer.Option(help="Repeat the faults of an earlier run.")] = None,
    faults: Annotated[int | None, typer.Option(min=1, help="End after this many faults.")] = None,
    kinds: Kinds = None,
    steps: Steps = None,
    master: Master = "local[2,4]",
    cluster: Workers = 0,
    guarantee: Annotated[str, typer.Option(help="Of the job, as for run.")] = "exactly-once",
    max_rows_per_epoch: Annotated[int | None, typer.Option(help="[default: found by itself]")] = None,
    epoch_interval: Annotated[str | None, typer.Option(help="Least time between epochs.")] = None,
    checkpoint_interval: Annotated[str | None, typer.Option(help="Least time between commits.")] = None,
    parallelism: Annotated[int | None, typer.Option(help="How many shards to begin with.")] = None,
    backend: Annotated[str | None, typer.Option(help="Where working state lives, as for run.")] = None,
    real_sinks: Annotated[bool, typer.Option(help="Write the job's own sinks, too.")] = False,
    check_by: CheckBy = None,
    out: Out = None,
    job: JobName = None,
    json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Run a job under kills, pauses, storage faults and clock jumps, and compare it with a run without."""
    options = {
        "guarantee": guarantee,
        "max_rows_per_epoch": max_rows_per_epoch,
        "epoch_interval": epoch_interval,
        "checkpoint_interval": checkpoint_interval,
        "parallelism": parallelism,
        "backend": backend,
    }
    with one_line_errors(verbose):
        declared = load_job(file, job)
        _refuse_what_cannot_end(declared, guarantee)
        wish = Wish(
            seed=random.SystemRandom().randrange(10_000) if seed is None else seed,
            seconds=minutes * 60,
            faults=faults,
            kinds=_kinds(kinds, bool(cluster)),
            steps=_steps(steps),
            guarantee=guarantee,
        )
        settings = LifeSettings(
            options={name: value for name, value in options.items() if value is not None},
            real_sinks=real_sinks,
        )
        judge, directory = _check(check_by), _empty(out)
        tell = _Telling(Console(stderr=json, highlight=False, soft_wrap=True), verbose)
        tell.beginning(file, wish, directory)
        with _stage(file, job, settings, master, cluster, directory) as (stage, nodes):
            shapes = sink_shapes(declared.graph())
            report = Campaign(
                stage, shapes, wish, directory, cluster=nodes, check=judge, listener=tell.event
            ).run()
        tell.report(report, as_json=json)
    raise typer.Exit(EXIT_CODES[report.verdict])


def _refuse_what_cannot_end(job: Job, guarantee: str) -> None:
    graph = job.graph()
    check(graph)
    check_guarantee(graph, guarantee)
    for node in graph.sources:
        if isinstance(node.source, GeneratorSource) and node.source.total is None:
            raise DefinitionError(
                f"{node.place} source {node.uid!r} has no end, and a job is judged by its end; "
                "give it total=..., or another bounded source, while under chaos"
            )


def _kinds(given: str | None, cluster: bool) -> tuple[Kind, ...]:
    if given is None:
        return usual_kinds(cluster=cluster)
    try:
        kinds = tuple(Kind(name.strip()) for name in given.split(","))
    except ValueError as unknown:
        raise DefinitionError(f"{unknown}; the kinds are {', '.join(Kind)}") from None
    if not cluster and (only := CLUSTER_ONLY & set(kinds)):
        raise DefinitionError(f"{', '.join(only)} needs executors of their own; add --cluster 2")
    return kinds


def _steps(given: str | None) -> tuple[Step, ...]:
    known = {str(step): step for step in DRIVER_STEPS}
    names = known if given is None else [name.strip() for name in given.split(",")]
    if unknown := [name for name in names if name not in known]:
        raise DefinitionError(f"the driver has no step {unknown[0]!r}; the steps are {', '.join(known)}")
    return tuple(known[name] for name in names)


def _check(given: str | None) -> Check | None:
    if given is None:
        return None
    module, _, name = given.partition(":")
    try:
        found: Check = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as cause:
        raise DefinitionError(
            f"there is no {given!r} to check by ({cause}); write module:function"
        ) from cause
    return found


def _empty(out: Path | None) -> Path:
    directory = (out or Path(f"chaos-{datetime.now():%Y%m%d-%H%M%S}")).resolve()
    if directory.exists() and any(directory.iterdir()):
        raise DefinitionError(f"{directory} is not empty; name another directory with --out")
    directory.mkdir(parents=True, exist_ok=True)
    return directory


@contextmanager
def _stage(
    file: Path, job: str | None, settings: LifeSettings, master: str, workers: int, directory: Path
) -> Iterator[tuple[Stage, Cluster | None]]:
    # So that the job ends, too, when this process is told to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    command = [sys.executable, "-m", "holdfast.cli.chaos_process", str(file.resolve())]
    if job is not None:
        command.append(f"--job={job}")
    if not workers:
        yield Stage(command=tuple(command), settings=settings, master=master), None
        return
    # Room for two: a driver takes over while the executors of the first are still there.
    with Cluster(directory / "cluster", workers, applications=2) as cluster:
        yield (
            Stage(
                command=tuple(command),
                settings=settings,
                master=cluster.url,
                conf=cluster.conf(os.environ.get("PYTHONPATH", "")),
                executors_elsewhere=True,
            ),
            cluster,
        )


class _Telling:
    """What people see."""

    def __init__(self, console: Console, verbose: bool) -> None:
        self._console, self._verbose = console, verbose

    def beginning(self, file: Path, wish: Wish, directory: Path) -> None:
        self._console.print(
            f"[bold]{file.name}[/bold] under chaos, seed {wish.seed}: first once in peace, then for "
            f"{wish.seconds / 60:g} minutes under {len(wish.kinds)} kinds of faults.\n"
            f"Everything is in {directory}"
        )

    def event(self, event: Event) -> None:
        if self._verbose or event.kind in TOLD:
            self._console.print(str(event), markup=False)

    def report(self, report: Report, *, as_json: bool) -> None:
        if as_json:
            print_json(report.as_dict())
            return
        figures, tally = report.figures, report.figures.tally
        for name, value in (
            ("seed", str(report.seed)),
            ("rounds", str(figures.rounds)),
            ("faults", f"{figures.fault_count} of {len(figures.faults)} kinds"),
            *((f"  {kind}", str(count)) for kind, count in figures.faults.items()),
            ("found nothing to strike", str(sum(figures.missed.values()))),
            ("restarts of the driver", str(figures.restarts)),
            ("epochs, rows read", f"{figures.epochs:,}, {figures.source_rows:,}"),
            ("rows shown", f"{tally.rows:,}"),
            ("lost, doubled", f"{tally.lost:,}, {tally.doubled:,}"),
            ("changed, invented", f"{tally.changed:,}, {tally.invented:,}"),
            ("from a kill to the next commit", _recovery(report)),
            ("chance of a failure per round", _bound(report)),
        ):
            self._console.print(f"{name:<32}{value}", markup=False)
        for reason in report.reasons[:12]:
            self._console.print(f"  - {reason}", markup=False)
        colour = {Verdict.TRUE: "green", Verdict.FALSE: "red", Verdict.UNKNOWN: "yellow"}[report.verdict]
        self._console.print(f"verdict: [bold {colour}]{report.verdict}[/bold {colour}]")
        self._console.print(f"A picture of it: {report.directory / 'timeline.svg'}")


def _recovery(report: Report) -> str:
    took = report.figures.recoveries
    if not took.count:
        return "nothing was measured"
    return f"p50 {took.p50:.1f} s, p95 {took.p95:.1f} s, longest {took.longest:.1f} s ({took.count} times)"


def _bound(report: Report) -> str:
    limit = bound(report.verdict, report.figures.rounds)
    if limit is None:
        return "not bounded: the verdict is not true"
    return f"below {limit:.2g} with 95 % confidence (no failure in {report.figures.rounds}: 3/n)"
