"""Whatever storage and Spark go through, each batch of a query is in its channel once, whole and in order."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.records import Extent
from holdfast.errors import HoldfastError
from holdfast.runtime.doors.channel_writer import Batch, ChannelWriter
from holdfast.storage.checksums import checksum, read_extent
from holdfast.tasks.messages import Output, Payload
from holdfast.tasks.task_output import pack_rows, unpack_rows
from holdfast.testing.clocks import ManualClock
from holdfast.testing.faulty_storage import Fault, FaultKind, FaultyStorage
from tests.unit.checkpoint.kept import MemoryStorage

BATCHES = 24
KEPT = 8
TRIES_MAX = 4_000
"""Seeds need 230 on average, and one in a hundred more than 400: only what never ends comes to this."""
FAULTS = (FaultKind.FAIL, FaultKind.LOSE_REQUEST, FaultKind.LOSE_ANSWER)


class Killed(BaseException):
    """The process is gone: nothing of it is done any more."""


class KilledStorage(FaultyStorage):
    """Kills the process that uses it after some calls."""

    calls_left: int | None = None

    def _hits(self, operation: str, name: str) -> list[Fault]:
        if self.calls_left is not None:
            if self.calls_left == 0:
                raise Killed
            self.calls_left -= 1
        return list(super()._hits(operation, name))


class Query:
    """A streaming query, as Spark runs it: a batch until it is done, and sometimes once more."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.inner = MemoryStorage()
        self.storage = KilledStorage(self.inner, seed=seed)
        self.writer = ChannelWriter(self.storage, "orders", KEPT, "run-0", ManualClock())
        self.starts, self.tried = 0, 0
        for kind in FAULTS:
            self.storage.add(Fault(kind=kind, times=None, chance=0.02))

    def run(self) -> None:
        batch = 0
        while batch < BATCHES:
            self.tried += 1
            assert self.tried < TRIES_MAX, f"batch {batch} is never done"
            if self._write(batch):
                # Killed before it wrote down that the batch is done, it does it again.
                batch += self.chance.random() < 0.8
            else:
                self.starts += 1
                self.writer = replace(self.writer, run=f"run-{self.starts}")

    def _write(self, batch: int) -> bool:
        self.storage.calls_left = self.chance.choice([None, None, self.chance.randrange(60)])
        outputs: list[Output] = []
        try:
            epoch = self.writer.begin()
            outputs = [self._rows(batch, epoch, part) for part in range(3)]
            try:
                self.writer.append(epoch, outputs, Batch("query", batch))
            except HoldfastError:
                with suppress(HoldfastError):
                    self.writer.discard(epoch, outputs)
                return False
        except (HoldfastError, Killed):
            return False
        return True

    def _rows(self, batch: int, epoch: int, part: int) -> Output:
        data = pack_rows(pa.table({"batch": [batch], "attempt": [self.tried], "part": [part]}))
        total = checksum(data)
        if part:
            return Output("", 1, Payload(checksum=total, length=len(data), inline=data))
        name = f"{names.data_of(epoch)}{self.tried}"
        self.storage.put(name, data)
        extent = Extent(object=name, offset=0, length=len(data), checksum=total)
        return Output("", 1, Payload(checksum=total, length=len(data), extent=extent))


@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=12, deadline=None)
def test_each_batch_is_there_once_and_whole(seed: int) -> None:
    query = Query(seed)
    query.run()
    view = History(query.inner).load()
    assert view.last_epoch == BATCHES
    assert view.rows == 3 * BATCHES
    channel = view.channels["orders"]
    found = [
        (file.epoch, unpack_rows(read_extent(query.inner, file.extent), "").to_pylist()[0])
        for file in channel.files
    ]
    held = range(BATCHES - KEPT, BATCHES)
    assert [(epoch, row["batch"], row["part"]) for epoch, row in found] == [
        (batch + 1, batch, part) for batch in held for part in range(3)
    ]
    attempts = {epoch: {row["attempt"] for at, row in found if at == epoch} for epoch, _ in found}
    assert all(len(each) == 1 for each in attempts.values()), "a batch is what one try wrote"
