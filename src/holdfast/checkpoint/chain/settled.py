"""What is settled of the rows for sinks, and which of them wait to be shown.

The first commit that covers an epoch says what a sink shows of it. When a rewind lets the epoch be computed
again, nothing is staged for that sink a second time: the rows of that first commit stay, and are shown.
Always true: what is settled never becomes unsettled. Staged rows that are damaged are *lost*: the epoch is to
be computed again, and these rows alone are replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from holdfast.checkpoint.chain.live_files import SharedList
from holdfast.checkpoint.store.records import CommitRecord, StagedFile


@dataclass(frozen=True)
class Settled:
    """How far the rows for each sink are settled."""

    through: Mapping[str, int] = field(default_factory=dict)
    """Sink uid -> the newest epoch whose rows for it a commit has named."""
    lost: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Sink uid -> epochs up to `through` whose rows for it are to be staged again."""

    def covers(self, sink: str, epoch: int) -> bool:
        """Whether what the sink shows of an epoch is in storage, or was: none of it is staged again."""
        return epoch <= self.through.get(sink, 0) and epoch not in self.lost.get(sink, ())

    def ready_through(self, sink: str) -> int:
        """The epoch up to which a sink can show its rows without any being computed again."""
        return min([self.through.get(sink, 0), *(epoch - 1 for epoch in self.lost.get(sink, ()))])

    def waits_for(self, last_epoch: int) -> bool:
        """Whether rows are lost of epochs up to this one, which no epoch that follows computes again."""
        return any(epoch <= last_epoch for epochs in self.lost.values() for epoch in epochs)

    def after(self, record: CommitRecord) -> Settled:
        """What is settled after a commit."""
        if record.rewind_to is not None:
            # A rewind of older records keeps nothing that waits, and settles nothing.
            return Settled(record.staged_through, record.lost_output)
        told = record.staged_through
        if record.attempts and not told:
            told = through_epoch(record.last_epoch, record.published_through)
        through = {sink: max(epoch, self.through.get(sink, 0)) for sink, epoch in told.items()}
        through = through or dict(self.through)
        lost = {sink: tuple(e for e in epochs if e > record.last_epoch) for sink, epochs in self.lost.items()}
        return Settled(through, {sink: epochs for sink, epochs in lost.items() if epochs and sink in through})

    def without(self, damaged: Iterable[StagedFile], published: Mapping[str, int]) -> Settled:
        """The same with these files lost, to the sinks that have not shown them."""
        lost = {sink: set(epochs) for sink, epochs in self.lost.items()}
        for file in damaged:
            for sink in file.sinks:
                if published.get(sink, 0) < file.epoch <= self.through.get(sink, 0):
                    lost.setdefault(sink, set()).add(file.epoch)
        return Settled(self.through, {sink: tuple(sorted(epochs)) for sink, epochs in lost.items()})


def through_epoch(epoch: int, sinks: Iterable[str]) -> dict[str, int]:
    """What is settled where nothing else is said: all up to the last epoch that is committed."""
    return dict.fromkeys(sinks, epoch)


def with_staged(staged: SharedList[StagedFile], more: Collection[StagedFile]) -> SharedList[StagedFile]:
    """The files with `more` added, in the order of their epochs."""
    new = sorted(more, key=lambda file: file.epoch)
    if new and staged and new[0].epoch < staged[-1].epoch:
        return SharedList(sorted([*staged, *new], key=lambda file: file.epoch))
    return staged.appended(new)


def kept(
    settled: Settled, at_head: Iterable[StagedFile], at_target: Iterable[StagedFile]
) -> SharedList[StagedFile]:
    """The files that wait after a rewind: those at the head of the chain where that has settled what a sink
    shows, and those of the commit that is gone back to elsewhere."""
    files = [_to(file, settled.covers) for file in at_head]
    settles = settled.through
    files += [
        _to(file, lambda sink, epoch: epoch > settles.get(sink, 0)) if file.sinks else file
        for file in at_target
    ]
    return SharedList(sorted((file for file in files if file is not None), key=lambda file: file.epoch))


def _to(file: StagedFile, wanted: Callable[[str, int], bool]) -> StagedFile | None:
    """The file, for those of its sinks that are wanted. None: there are none."""
    sinks = tuple(sink for sink in file.sinks if wanted(sink, file.epoch))
    return (file if sinks == file.sinks else replace(file, sinks=sinks)) if sinks else None
