"""Who runs the keyed running sum, and how each is started: always in processes of its own, on two cores."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pyarrow.csv as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from bench.peers.environments import HERE, Environment, LeftOut, last_error
from bench.peers.flink_cluster import FlinkCluster
from bench.peers.marks import Pace, pace, read_marks
from bench.spark_baselines import CORES
from bench.workload import Workload, write_slices
from holdfast.chaos.processes import Life
from holdfast.nodes.zookeeper_server import free_port

BYTEWAX = Environment("bytewax", "bytewax")
PYFLINK = Environment("pyflink", "apache-flink")
SNAPSHOT_SECONDS = 1
"""How often bytewax saves its state; PyFlink takes a checkpoint as often (pyflink_job)."""
RUN_SECONDS = 1_800.0
POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Trial:
    """One run: a directory of its own, and the slices in it that are to be read."""

    place: Path
    workload: Workload
    slices: int

    def prepare(self) -> None:
        for directory in (self.out, self.marks):
            directory.mkdir(parents=True)
        write_slices(self.slices_in, self.workload, self.slices)

    @property
    def slices_in(self) -> Path:
        return self.place / "in"

    @property
    def out(self) -> Path:
        return self.place / "out"

    @property
    def marks(self) -> Path:
        return self.place / "marks"

    def await_end(self, lives: list[Life]) -> None:
        """LeftOut: one of them failed, or it took too long; none is left then."""
        give_up = time.monotonic() + RUN_SECONDS
        try:
            while any(life.running for life in lives):
                failed = next((life for life in lives if life.exit_code), None)
                if failed is not None:
                    break
                if time.monotonic() > give_up:
                    raise LeftOut(f"it was not done after {RUN_SECONDS:.0f} s")
                time.sleep(POLL_SECONDS)
            for life in lives:
                if life.exit_code:
                    raise LeftOut(f"it failed: {last_error(life.said())}")
        finally:
            for life in lives:
                life.close()


def nothing(trial: Trial) -> None:
    """There is nothing to prepare."""


@dataclass(frozen=True)
class Contender:
    """`run` runs it to the end; `prepare` makes what it needs, outside of its time."""

    name: str
    run: Callable[[Trial], None]
    prepare: Callable[[Trial], None] = nothing
    output: str = "parquet"
    slices: int = 1
    """Of the full workload; the slow get fewer."""
    environment: Environment | None = None
    """None: it is Holdfast."""

    @property
    def version(self) -> str:
        return version("holdfast") if self.environment is None else self.environment.version

    def measure(self, trial: Trial) -> tuple[Pace, float]:
        """Its pace, and the seconds from its start to its end. LeftOut: there is nothing to measure."""
        trial.prepare()
        self.prepare(trial)
        started = time.monotonic()
        self.run(trial)
        wall = time.monotonic() - started
        found = pace(read_marks(trial.marks), trial.workload.rows * trial.slices, started)
        check_sums(trial, self.output)
        return found, wall


def check_sums(trial: Trial, output: str) -> None:
    """LeftOut: the last sums that were written are not those of the rows that were read."""
    rows = ds.dataset(trial.slices_in).to_table().group_by("k").aggregate([("value", "sum")])
    options = pc.ReadOptions(column_names=["k", "total"])
    format = ds.CsvFileFormat(read_options=options) if output == "csv" else output
    written = ds.dataset(trial.out, format=format).to_table(columns=["k", "total"])
    # Values are never negative, so a key's last sum is its largest.
    last = written.group_by("k").aggregate([("total", "max")])
    if sorted(zip(*rows.to_pydict().values(), strict=True)) != sorted(
        zip(*last.select(["k", "total_max"]).to_pydict().values(), strict=True)
    ):
        raise LeftOut("its sums are wrong: nothing measured of it means anything")


def run_holdfast(operator: str, trial: Trial) -> None:
    arguments = (operator, trial.slices_in, trial.out, trial.marks, trial.place, trial.workload.rows)
    command = [sys.executable, "-m", "bench.peers.holdfast_job", *map(str, arguments)]
    trial.await_end([Life("holdfast", command, {}, trial.place / "said.log")])


def prepare_bytewax(trial: Trial) -> None:
    recovery = trial.place / "recovery"
    recovery.mkdir()
    command = [str(BYTEWAX.python()), "-m", "bytewax.recovery", str(recovery), str(CORES)]
    trial.await_end([Life("bytewax", command, {}, trial.place / "recovery.log")])


def run_bytewax(trial: Trial) -> None:
    python, addresses = str(BYTEWAX.python()), ";".join(f"127.0.0.1:{free_port()}" for _ in range(CORES))
    lives = []
    for process in range(CORES):
        arguments = (str(trial.slices_in), str(trial.out), str(trial.marks), process, CORES)
        command = [python, "-m", "bytewax.run", f"{HERE / 'bytewax_flow.py'}:flow{arguments!r}"]
        command += ["-r", str(trial.place / "recovery"), "-s", str(SNAPSHOT_SECONDS), "-b", "0"]
        command += ["-i", str(process), "-a", addresses]
        lives.append(Life("bytewax", command, {}, trial.place / f"said-{process}.log"))
    trial.await_end(lives)


def prepare_pyflink(trial: Trial) -> None:
    """The same rows as text: the package has no Parquet format."""
    PYFLINK.python()
    (trial.place / "csv").mkdir()
    for path in sorted(trial.slices_in.glob("*.parquet")):
        plain = pc.WriteOptions(include_header=False)
        pc.write_csv(pq.read_table(path), trial.place / "csv" / f"{path.stem}.csv", plain)


def run_pyflink(trial: Trial) -> None:
    python = PYFLINK.python()
    (trial.place / "checkpoints").mkdir()
    with FlinkCluster(python, trial.place / "cluster", CORES) as cluster:
        arguments = (trial.place / "csv", trial.out, trial.marks, trial.place / "checkpoints")
        trial.await_end([cluster.submit(HERE / "pyflink_job.py", *map(str, arguments))])
