"""The checkpoint of a job in two parts, as a run leaves it, without Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from msgspec.structs import replace

from holdfast.checkpoint.chain.channels import answering
from holdfast.checkpoint.chain.checkpoint import open_checkpoint
from holdfast.checkpoint.chain.commits import Chain, Committed
from holdfast.checkpoint.chain.layout import keep_layout
from holdfast.checkpoint.chain.terms import claim, record_ending
from holdfast.checkpoint.chain.view import news
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.records import (
    ChannelState,
    CommitRecord,
    EndedRecord,
    Extent,
    LayoutRecord,
    SentFile,
)
from holdfast.clock import SystemClock
from holdfast.ids import CommitNumber
from holdfast.storage.checksums import checksum
from holdfast.storage.local_directory import LocalStorage
from holdfast.tasks.task_output import pack_rows

CHANNEL = "clicks-in"
ROWS = 10
"""In each epoch of the channel, in two files."""
APP = """
import holdfast as hf
job = hf.Job("fraud")
scoring = job.part("scoring", protection=hf.PassiveStandby())
clicks = job.source(hf.MemorySource([{"user": "a", "n": 1}], schema="user string, n long"), uid="clicks")
clicks.into(scoring, uid="clicks-in").sink(hf.MemorySink(), uid="out")
"""


class Parts:
    """`main` has committed three epochs, which went into the channel; `scoring` has read the first, and one
    of two files of the second."""

    def __init__(self, path: Path) -> None:
        self.root = LocalStorage(path)
        self.main = LocalStorage(path / "parts/main")
        self.scoring = LocalStorage(path / "parts/scoring")
        self.layout = LayoutRecord(
            job="fraud", parts=("scoring", "main"), channels={CHANNEL: ("main", "scoring")},
            limits={CHANNEL: (1 << 30, 1_000)},
        )  # fmt: skip
        keep_layout(self.root, self.layout, allow_dropped_state=False)
        for name, storage in (("main", self.main), ("scoring", self.scoring)):
            open_checkpoint(storage, f"fraud.{name}", 4, SystemClock(), identity=name)
            claim(storage, f"run-{name}", "here", 4711, SystemClock().now_ms())
        for epoch in (1, 2, 3):
            self.send(epoch)
        self.read([1, 1])

    def send(self, epoch: int, *channels: str, ended: bool = False) -> None:
        """Commit an epoch of `main`, with rows in these channels, and another event time."""
        uids = channels or (CHANNEL,)
        record = CommitRecord(
            term=1, run="run-main", first_epoch=epoch, last_epoch=epoch, attempts={str(epoch): 1},
            clock_ms=epoch, parallelism=1, fingerprint="f", positions={"clicks": epoch}, rows=ROWS,
            sent=tuple(self._sent(uid, epoch, part) for uid in uids for part in (0, 1)),
            channels={uid: ChannelState(through=epoch, times=((epoch, epoch),)) for uid in uids}, ended=ended,
        )  # fmt: skip
        _commit(self.main, record)

    def read(self, position: list[int]) -> None:
        """Commit of `scoring` that it has read the channel up to there."""
        epoch = Chain(self.scoring).load().last_epoch + 1
        record = CommitRecord(
            term=1, run="run-scoring", first_epoch=epoch, last_epoch=epoch, attempts={str(epoch): 1},
            clock_ms=epoch, parallelism=1, fingerprint="f", positions={CHANNEL: position},
        )  # fmt: skip
        _commit(self.scoring, record)

    def carry(self, barrier: int) -> None:
        """Commit of `main` that carries a barrier."""
        view = Chain(self.main).load()
        _commit(self.main, news(view, term=1, run="run-main", published_through={}, barrier=barrier))

    def ask(self, epoch: int) -> None:
        """Commit of `scoring` that it has found an epoch of the channel damaged."""
        view = Chain(self.scoring).load()
        _commit(
            self.scoring,
            news(view, term=1, run="run-scoring", published_through={}, asks={CHANNEL: epoch}),
        )

    def answer(self, epoch: int, commit: int) -> None:
        """Go back with `main` before this epoch, for which that commit of `scoring` has asked."""
        chain = Chain(self.main)
        view = chain.load()
        lost = answering(view.channels, CHANNEL, commit, (epoch,))
        chain.rewind(view.head, CommitNumber(epoch - 1), term=1, run="run-main", channels=lost)

    def limit(self, limit_bytes: int, limit_epochs: int) -> None:
        """Start with another limit of the channel."""
        layout = replace(self.layout, limits={CHANNEL: (limit_bytes, limit_epochs)})
        keep_layout(self.root, layout, allow_dropped_state=False)

    def end(self, *storages: LocalStorage) -> None:
        """Let the leaders of these parts say that they have ended."""
        for storage in storages or (self.main, self.scoring):
            view = Chain(storage).load()
            record_ending(
                storage,
                EndedRecord(
                    term=1, run=view.run, at_ms=0, ending="stopped", commit=view.number,
                    last_epoch=view.last_epoch, published=True,
                ),
            )  # fmt: skip

    def _sent(self, uid: str, epoch: int, part: int) -> SentFile:
        values = [epoch * 100 + part * 10 + i for i in range(ROWS // 2)]
        data = pack_rows(pa.table({"n": values}))
        name = f"{names.data_of(epoch)}{uid}-{part}"
        self.main.put(name, data)
        extent = Extent(object=name, offset=0, length=len(data), checksum=checksum(data))
        return SentFile(channel=uid, epoch=epoch, part=part, extent=extent, rows=len(values))


def _commit(storage: LocalStorage, record: CommitRecord) -> None:
    chain = Chain(storage)
    outcome = chain.commit(chain.load(), record)
    assert isinstance(outcome, Committed)
