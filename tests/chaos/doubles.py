"""Parts of the job and of the engine that behave badly on purpose, or that wait to be disturbed.

What runs in workers is found by name there: this module is importable wherever the tests are.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.tasks import keyed as tasks
from holdfast.tasks.messages import KeyedTask, TaskResult, decode_result, encode_result
from tests.chaos.apps import Ledger, Marks, Place, Shape
from tests.chaos.inprocess import Crash

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    import holdfast as hf
    from holdfast.connectors.contract import StagedPart

GATE_SECONDS = 120.0
RESULTS_KEPT = "registered"


@dataclass(frozen=True)
class Gate:
    """A place where one task waits until it is opened, or until whoever runs it kills it."""

    path: Path

    @property
    def reached(self) -> bool:
        return self._token("reached").exists()

    def open(self) -> None:
        self._token("open").touch()

    def pass_through(self) -> None:
        """The first task here waits; all others, and all after it was opened, go on."""
        try:
            os.close(os.open(self._token("reached"), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        give_up = time.monotonic() + GATE_SECONDS
        while not self._token("open").exists():
            if time.monotonic() > give_up:
                raise TimeoutError(f"nobody opened {self.path}")
            time.sleep(0.02)

    def _token(self, what: str) -> Path:
        return self.path.with_name(f"{self.path.name}.{what}")


class GatedLedger(Ledger):
    """Stops at one event until its gate is opened: a task in the middle of a user's function."""

    def __init__(self, marks: Marks, shape: Shape, gate: Path, event: int) -> None:
        super().__init__(marks, shape)
        # Not a part of the job's fingerprint: the same job goes on when nobody waits any more.
        self._gate, self._event = gate, event

    def process(self, row: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        if row.event == self._event:
            Gate(self._gate).pass_through()
        yield from super().process(row, ctx)


def gated_map_side(gate: Path, event: int) -> Callable[[DataFrame], DataFrame]:
    """A transform whose task stops at one event, while it feeds the shuffle."""
    return partial(_through_gate, str(gate), event)


def _through_gate(gate: str, event: int, frame: DataFrame) -> DataFrame:
    return frame.mapInArrow(partial(_wait_at, gate, event), frame.schema)


def _wait_at(gate: str, event: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if event in batch.column("event").to_pylist():
            Gate(Path(gate)).pass_through()
        yield batch


def run_twice(
    taken: Literal["first", "second"], task: KeyedTask, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Every task has a twin that ends as well as it does; the driver gets to know only one of them."""
    given = list(batches)
    results = [batch for _ in range(2) for batch in tasks.run_operator(task, iter(given))]
    yield results[0] if taken == "first" else results[1]


def register_result(directory: str, task: KeyedTask, batches: Iterator[pa.RecordBatch]) -> Iterator[Any]:
    """A task that believes in the end of its input and registers its result by itself.

    In the epoch and operator that the file `cut` names, the input ends after the first batch: that is what an
    iterator was seen to do when its job was cancelled.
    """
    cut = Path(directory, "cut").read_text() == f"{task.work.epoch} {task.uid}"
    given = [next(batches)] if cut else list(batches)
    for batch in tasks.run_operator(task, iter(given)):
        result = decode_result(batch.column(0)[0].as_py())
        kept = Path(directory, RESULTS_KEPT)
        kept.mkdir(exist_ok=True)
        draft = kept / f".{uuid.uuid4().hex}"
        draft.write_bytes(encode_result(result))
        draft.replace(kept / f"{task.work.epoch}-{task.uid}-{result.shard}")
        if cut:
            Gate(Path(directory, "gate")).pass_through()
        yield batch


def registered_results(directory: Path, epoch: int, uid: str) -> list[TaskResult]:
    """What tasks registered, whatever became of their job."""
    return [
        decode_result(path.read_bytes())
        for path in sorted(Path(directory, RESULTS_KEPT).glob(f"{epoch}-{uid}-*"))
    ]


class AppendingSink:
    """Writes a file per published epoch. What it knows about earlier ones can be taken away."""

    exactly_once = True

    def __init__(
        self,
        path: Path,
        crash_after: int,
        fingerprint: Literal["kept", "ignored"],
        shows: Literal["told", "untold"],
    ) -> None:
        self.path, self.crash_after = path, crash_after
        self.fingerprint, self.shows = fingerprint, shows

    def publisher(self, job: str, uid: str) -> AppendingPublisher:
        self.path.mkdir(parents=True, exist_ok=True)
        return AppendingPublisher(self, uid)


class AppendingPublisher:
    """The driver dies once, right after an epoch was made visible: nobody has noted it down."""

    def __init__(self, sink: AppendingSink, uid: str) -> None:
        self._sink, self._uid = sink, uid

    def published_through(self) -> int:
        if self._sink.shows == "untold":
            return 0
        shown = [
            int(path.name.removeprefix(f"{self._uid}-")[:12]) for path in self._sink.path.glob("*.parquet")
        ]
        return max(shown, default=0)

    def publish(self, epoch: int, parts: Sequence[StagedPart]) -> None:
        again = "" if self._sink.fingerprint == "kept" else f"-{uuid.uuid4().hex}"
        path = self._sink.path / f"{self._uid}-{epoch:012d}{again}.parquet"
        tables = [part.load() for part in parts if part.rows]
        if tables and not path.exists():
            pq.write_table(pa.concat_tables(tables), path)
        crashed = self._sink.path / "_crashed"
        if epoch == self._sink.crash_after and not crashed.exists():
            crashed.touch()
            raise Crash(f"after epoch {epoch} was shown in {self._uid}")

    def close(self) -> None:
        pass


def appending_sinks(
    crash_after: int, fingerprint: Literal["kept", "ignored"], shows: Literal["told", "untold"]
) -> Callable[[Place, str], hf.Sink]:
    def sink_of(place: Place, uid: str) -> hf.Sink:
        return AppendingSink(place.sink(uid), crash_after, fingerprint, shows)

    return sink_of
