"""Writing a channel from outside a job: a chain of its own, in which each micro-batch of a Structured
Streaming query, or each write of a DataFrame, is one epoch.

Always true: a batch of a query is in the channel once, however often it is written; batches follow one
another without a gap; one query writes a channel, from its first batch on. Files were durable before the
commit that names them, and those that no commit names are removed.
Each call may be made in another process: what is known is what the chain says.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

from holdfast.checkpoint.chain.checkpoint import open_checkpoint
from holdfast.checkpoint.chain.commits import Chain, Committed
from holdfast.checkpoint.chain.retention import SWEEP_EVERY, Retention
from holdfast.checkpoint.chain.terms import claim, newest_term, record_ending
from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.envelope import unseal
from holdfast.checkpoint.store.records import CommitRecord, EndedRecord, SentFile, TermRecord
from holdfast.clock import Clock
from holdfast.errors import DefinitionError, FencedOut, HoldfastError, RetryableError, UnknownOutcome
from holdfast.runtime.epoch.payload_bundle import Bundle
from holdfast.runtime.parts.outlets import door_state, new_door
from holdfast.storage.contract import Storage
from holdfast.tasks.messages import Output

COMMIT_TRIES_MAX = 5
MANIFEST_EVERY = 16
"""Commits between full manifests. Few: a batch is committed in a process of its own, which reads them all."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch. `query`: the id that a query keeps with its Spark checkpoint; empty: not told."""

    query: str
    number: int


class Appended(Enum):
    """What came of a write."""

    COMMITTED = "committed"
    REPEATED = "repeated"
    """The batch is in the channel since an earlier try; what was written this time is removed."""


class Overtaken(RetryableError):
    """Another writer has committed meanwhile."""


@dataclass(frozen=True)
class ChannelWriter:
    """Writes the channel `name` of the checkpoint in `storage`. `run` is a fresh random name for each start
    of a writer."""

    storage: Storage
    name: str
    keep_epochs: int
    run: str
    clock: Clock

    def begin(self) -> int:
        """The epoch that is to be written next. RestoreError: the place holds something else."""
        self._open()
        chain = Chain(self.storage)
        numbers = chain.numbers()
        return (chain.record(numbers[-1]).last_epoch if numbers else 0) + 1

    def append(self, epoch: int, outputs: Sequence[Output], batch: Batch | None) -> Appended:
        """Commit what was written as `epoch`. `batch`: of a query; None: it is a whole write, after which
        the channel has come to its end until the next.

        DefinitionError: it does not follow what the channel holds. FencedOut: another writer took over.
        """
        # Unique: an earlier try of this very run may be what the chain names.
        bundle = Bundle(self.storage, f"{names.data_of(epoch)}{self.run}-bundle-{uuid.uuid4().hex}")
        sent = [
            SentFile(
                channel=self.name, epoch=epoch, part=part, extent=bundle.place(output.payload),
                rows=output.rows,
            )
            for part, output in enumerate(outputs)
        ]  # fmt: skip
        bundle.write()
        objects = {file.extent.object for file in sent}
        for _ in range(COMMIT_TRIES_MAX):
            self._open()
            chain = Chain(self.storage, manifest_every=MANIFEST_EVERY)
            view = chain.load()
            try:
                if self._is_there(view, batch):
                    self._remove_unnamed(view, objects)
                    return Appended.REPEATED
                self._refuse_overtaken(view, epoch)
                done = chain.commit(view, self._record(view, self._term(), sent, batch))
            except UnknownOutcome:
                # The chain tells, once it is read again, whether the record is there.
                continue
            except (DefinitionError, FencedOut, Overtaken):
                self._remove_unnamed(view, objects)
                raise
            if isinstance(done, Committed):
                self._committed(chain, done.view, batch)
                return Appended.COMMITTED
        self.storage.put(_in_doubt(epoch), b"")
        raise UnknownOutcome(
            f"it is not known whether epoch {epoch} of channel {self.name!r} was committed "
            f"({COMMIT_TRIES_MAX} tries); write the batch again, which tells"
        )

    def discard(self, epoch: int, outputs: Sequence[Output]) -> None:
        """Remove what was written as `epoch` and is not going to be committed. Where a commit may still
        appear nothing is: retention removes what it does not name."""
        objects = {each.payload.extent.object for each in outputs if each.payload.extent is not None}
        if objects and self.storage.size(_in_doubt(epoch)) is None:
            self._remove_unnamed(Chain(self.storage).load(), objects)

    def _refuse_overtaken(self, view: CheckpointView, epoch: int) -> None:
        if view.last_epoch + 1 != epoch:
            raise Overtaken(
                f"channel {self.name!r} in {self.storage.url} has come to epoch {view.last_epoch} while "
                f"epoch {epoch} was written: another writer was faster; write again"
            )

    def _open(self) -> None:
        open_checkpoint(self.storage, self.name, 1, self.clock, identity=self.run)

    def _is_there(self, view: CheckpointView, batch: Batch | None) -> bool:
        """Whether a batch is in the channel. DefinitionError: it neither is, nor comes next."""
        where, before = f"channel {self.name!r} in {self.storage.url}", view.positions.get(self.name)
        if batch is None:
            if before is not None:
                raise DefinitionError(
                    f"{where} is written by a streaming query, and a write of another kind would come "
                    "between its batches; write to another place"
                )
            return False
        if before is None and view.number:
            raise DefinitionError(
                f"{where} holds what was written without a streaming query; let the query write to another "
                "place"
            )
        newest = -1 if before is None else before["batch"]
        if before is not None and before["query"] != batch.query:
            raise DefinitionError(
                f"{where} is written by another streaming query, which has come to batch {newest}; this one "
                f"has a Spark checkpoint of its own, whose batches begin at 0 again: {_START_OTHERWISE}"
            )
        if batch.number < newest:
            raise DefinitionError(
                f"batch {batch.number} comes to {where}, which has come to batch {newest}: the Spark "
                f"checkpoint of the query was begun again, or is an older copy; {_START_OTHERWISE}"
            )
        if batch.number > newest + 1:
            has = "has none" if newest < 0 else f"has come to batch {newest}"
            raise DefinitionError(
                f"batch {batch.number} comes to {where}, which {has}: those between are missing there; "
                "restore it from a newer copy, or start the query with a new checkpointLocation and write to "
                "another place"
            )
        return batch.number == newest

    def _term(self) -> int:
        """The term of this writer, claimed at its first commit. FencedOut: another one claimed since."""
        newest = newest_term(self.storage)
        if newest is not None and newest.run == self.run:
            return newest.term
        for entry in self.storage.list(names.TERMS):
            record = unseal("term", TermRecord, self.storage.get(entry.name), entry.name)
            if newest is not None and record.run == self.run:
                raise FencedOut(
                    record.term, newest.term, f"another writer of channel {self.name!r} on {newest.host}"
                )
        return claim(self.storage, self.run, socket.gethostname(), os.getpid(), self.clock.now_ms())

    def _record(
        self, view: CheckpointView, term: int, sent: list[SentFile], batch: Batch | None
    ) -> CommitRecord:
        epoch, channel = view.last_epoch + 1, view.channels.get(self.name) or new_door(view.last_epoch)
        position = None if batch is None else {"query": batch.query, "batch": batch.number}
        return CommitRecord(
            term=term,
            run=self.run,
            first_epoch=epoch,
            last_epoch=epoch,
            attempts={},
            clock_ms=max(self.clock.now_ms(), view.clock_ms),
            parallelism=1,
            fingerprint="",
            positions={} if position is None else {self.name: position},
            # After a rewind: what was once in a channel stays what it was.
            sent=tuple(sent) if epoch > channel.through else (),
            rows=sum(file.rows for file in sent),
            channels={self.name: door_state(channel, epoch, self.keep_epochs)},
            ended=batch is None,
        )

    def _committed(self, chain: Chain, view: CheckpointView, batch: Batch | None) -> None:
        # The commit stands, whatever becomes of the rest: the next one tries again.
        with suppress(HoldfastError):
            if batch is None:
                record_ending(
                    self.storage,
                    EndedRecord(
                        term=view.term, run=self.run, at_ms=self.clock.now_ms(), ending="exhausted",
                        commit=view.number, last_epoch=view.last_epoch, published=True,
                    ),
                )  # fmt: skip
            if view.number % SWEEP_EVERY == 0:
                Retention(chain).after_commit(view)

    def _remove_unnamed(self, view: CheckpointView, objects: set[str]) -> None:
        """Remove what no commit names: a record of ours whose fate was not known may be in the chain."""
        self.storage.delete(objects - view.objects())


def _in_doubt(epoch: int) -> str:
    """There while a commit of this epoch may still appear. Retention removes it with the epoch."""
    return f"{names.data_of(epoch)}in-doubt"


_START_OTHERWISE = (
    "start the query with the checkpointLocation that it had, or let it write to another place from its "
    "beginning"
)
