"""`spark.read.format("holdfast-state")`: the state of one operator as a DataFrame.

Options: `checkpoint` or `savepoint` (where it is), `uid`, and for a checkpoint `commit` or `epoch` (without
either the newest commit) and `pin` (how long the commit is kept for this read: `1h`, or `off`).
Always true: a read shows one commit, the newest when the read was planned, though the job goes on; a
partition is a range of key groups, cut where the files of the state are.
The commit is pinned until every partition was read. A read that never gets there (a limit, a failure) leaves
its pin, which is void after `pin`: reads after that, and `holdfast checkpoints prune`, remove it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from holdfast.checkpoint.chain.pins import read_pins, unpin
from holdfast.clock import SystemClock, duration_ms
from holdfast.errors import DefinitionError, ObjectMissing, RestoreError
from holdfast.ids import KeyGroup, KeyGroupRange
from holdfast.inspect.stored_state import PIN_MS, StoredState, open_stored, pieces, pin_for, state_tables
from holdfast.state.encoding.types import frame_ddl
from holdfast.state.files.rows import row_schema
from holdfast.storage.contract import Storage
from holdfast.storage.urls import open_storage

NAME = "holdfast-state"
READERS = "readers/"
"""Below it, in checkpoint storage, a read says which of its partitions are done."""

_OPTIONS = ("checkpoint", "savepoint", "uid", "commit", "epoch", "pin", "path")


@dataclass(frozen=True)
class ReadOptions:
    """The options, checked."""

    url: str
    uid: str
    commit: int | None
    epoch: int | None
    pin_ms: int

    def open(self) -> StoredState:
        return open_stored(self.url, commit=self.commit, epoch=self.epoch)


class StateDataSource(DataSource):
    """What Spark knows as the format `holdfast-state`."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._asked = _checked({key.lower(): value for key, value in options.items()})

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return frame_ddl(row_schema(self._asked.open().layout(self._asked.uid)))

    def reader(self, schema: Any) -> StateDataReader:
        return StateDataReader(self._asked)


@dataclass
class StatePartition(InputPartition):
    """Some key groups of one commit or savepoint."""

    first: int
    end: int
    commit: int | None
    index: int
    count: int
    pin: str


class StateDataReader(DataSourceReader):
    """Plans once, then reads partitions on the workers."""

    def __init__(self, asked: ReadOptions) -> None:
        self._asked = asked

    def partitions(self) -> list[InputPartition]:
        stored = self._asked.open()
        pin, commit = "", None
        if not stored.savepoint:
            commit = stored.view.number
            drop_void_pins(stored.storage, SystemClock().now_ms())
            if self._asked.pin_ms and commit:
                pin = pin_for(stored, NAME, self._asked.pin_ms, SystemClock())
        cuts = pieces(stored.view, self._asked.uid, stored.whole)
        return [
            StatePartition(cut.first, cut.end, commit, index, len(cuts), pin)
            for index, cut in enumerate(cuts)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, StatePartition)
        groups = KeyGroupRange(KeyGroup(partition.first), KeyGroup(partition.end))
        try:
            stored = open_stored(self._asked.url, commit=partition.commit)
            for table in state_tables(stored, self._asked.uid, groups):
                yield from table.to_batches()
        except ObjectMissing as cause:
            raise RestoreError(
                f"commit {partition.commit} was given up while it was read ({cause}); "
                "read again, with a longer pin"
            ) from cause
        if partition.pin:
            _done(stored.storage, partition)


def _done(storage: Storage, partition: StatePartition) -> None:
    """Say that a partition was read; the last one to be read removes the pin."""
    directory = f"{READERS}{partition.pin}/"
    storage.put(f"{directory}{partition.index:06d}", b"")
    said = [entry.name for entry in storage.list(directory)]
    if len(said) == partition.count:
        unpin(storage, [partition.pin])
        storage.delete(said)


def drop_void_pins(storage: Storage, now_ms: int) -> list[str]:
    """Remove the pins whose time is over, and what their reads said. Gives their names."""
    pins = read_pins(storage)
    held = pins.held_at(now_ms)
    void = [pin.name for pin in pins.records if pin not in held]
    unpin(storage, void)
    storage.delete([entry.name for name in void for entry in storage.list(f"{READERS}{name}/")])
    return void


def _checked(options: dict[str, str]) -> ReadOptions:
    problems = [f"option {name!r} is not known" for name in options if name not in _OPTIONS]
    urls = [options[name] for name in ("checkpoint", "savepoint", "path") if options.get(name)]
    if len(urls) != 1:
        problems.append("give one of the options 'checkpoint' and 'savepoint', a directory or url")
    if not options.get("uid"):
        problems.append("give the option 'uid', of the operator whose state to read")
    if "commit" in options and "epoch" in options:
        problems.append("give 'commit' or 'epoch', not both")
    numbers: dict[str, int | None] = {"commit": None, "epoch": None}
    for name in numbers:
        if name in options:
            try:
                numbers[name] = int(options[name])
            except ValueError:
                problems.append(f"option {name!r} is a number, not {options[name]!r}")
    if problems:
        raise DefinitionError(f"format {NAME!r}: {'; '.join(problems)}")
    pin = options.get("pin", "")
    pin_ms = 0 if pin == "off" else duration_ms(pin) if pin else PIN_MS
    # Workers have other current directories than the driver.
    return ReadOptions(open_storage(urls[0]).url, options["uid"], numbers["commit"], numbers["epoch"], pin_ms)
