"""Reading the chain: any commit's view, from the nearest manifest and the records after it; and damage in it.

Always true: records at or below the floor are not seen; a view is returned only if every record and link
that it rests on was checked; a checkpoint that has lost its records is an error, never an empty start.
Never here: writing (see commits), going back (see commits.Chain.rewind), and checking data files.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from holdfast.checkpoint.chain.channels import fold_channels
from holdfast.checkpoint.chain.settled import Settled, with_staged
from holdfast.checkpoint.chain.view import (
    EMPTY,
    CheckpointView,
    Head,
    fold,
    fold_asked,
    from_manifest,
    rewound,
)
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.envelope import unseal
from holdfast.checkpoint.store.records import BarrierPlace, CommitRecord, Manifest
from holdfast.clock import Clock
from holdfast.errors import CorruptionError, ObjectMissing, RetryableError
from holdfast.ids import CommitNumber
from holdfast.storage.checksums import checksum
from holdfast.storage.contract import Storage

LOADS_MAX = 10


class DamagedChain(CorruptionError):
    """The newest commit cannot be read back whole. `fallback` is the newest that can (0: none); rewind to it.

    `head` is the end of the chain as found: a rewind follows it, damaged bytes and all, for history is
    append-only.
    """

    def __init__(self, head: Head, fallback: CommitNumber, problems: tuple[str, ...]) -> None:
        super().__init__(head, fallback, problems)
        self.head, self.fallback, self.problems = head, fallback, problems

    def __str__(self) -> str:
        remedy = (
            f"commit {self.fallback} is the newest whose records verify: rewind to it"
            if self.fallback
            else "no commit is readable: restore the storage from a copy"
        )
        return f"commit {self.head.number} cannot be restored: {'; '.join(self.problems)}; {remedy}"


def read_floor(storage: Storage) -> CommitNumber:
    """The floor: commit names at or below it are used up, also those that were deleted. 0: none are.

    It was raised durably before any commit record at or below it was deleted (see retention), so a leader
    that manages to create such a name again learns here that it was late.
    """
    return CommitNumber(names.highest(storage, names.FLOORS))


class History:
    """The commit records of one checkpoint, as far as they are above the floor.

    For one thread: it remembers what it has read. Another thread makes its own; views may be shared.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._records: dict[int, tuple[CommitRecord, str]] = {}
        self._views: dict[int, CheckpointView] = {}
        self.worked_around: list[str] = []
        """Damage that other records stood in for; the caller that loads a view reports it."""

    def numbers(self) -> list[CommitNumber]:
        """The commits in storage, oldest first."""
        floor_before = None
        while True:
            # In this order: the floor is raised before records go, so a floor read later explains gaps.
            found = [names.number_of(entry.name) for entry in self.storage.list(names.COMMITS)]
            floor = read_floor(self.storage)
            kept = [CommitNumber(number) for number in found if number is not None and number > floor]
            # None above a floor that has just moved: the listing was older than the records that moved it.
            if kept or floor in (0, floor_before):
                return kept
            floor_before = floor

    def is_newest(self, number: int) -> bool:
        """Whether commit `number` ends the chain: a look at two names, cheaper than a list of all of them.

        Commits are numbered without gaps and deleted from the oldest on, so this one there and the next one
        not is the end. `load` now and then all the same: a driver that was paused for very long may have put
        a deleted name back.
        """
        size = self.storage.size
        return size(names.commit(number + 1)) is None and size(names.commit(number)) is not None

    def load(self) -> CheckpointView:
        """The newest commit's view; EMPTY in a new checkpoint. DamagedChain where it cannot be read."""
        for _ in range(LOADS_MAX):
            numbers = self.numbers()
            if not numbers:
                lost = self._traces_of_commits()
                if lost and not self.numbers():
                    raise CorruptionError(
                        f"the checkpoint has no commit records, but {lost}: they were lost; "
                        "restore the storage from a copy"
                    )
                if lost:
                    continue
                return EMPTY
            try:
                return self.view_at(numbers[-1])
            except CorruptionError as cause:
                if self.numbers()[:1] == numbers[:1]:
                    raise self._damage(numbers, str(cause)) from cause
                # Retention moved the floor while we read: what we missed was retired, not damaged.
        raise RetryableError(f"the checkpoint's floor moved {LOADS_MAX} times while it was read; try again")

    def record(self, number: int) -> CommitRecord:
        """One commit record. CorruptionError when it is damaged or missing."""
        return self._record(number)[0]

    def view_at(self, number: int) -> CheckpointView:
        """The checkpoint as it was after commit `number`. CorruptionError when its records do not verify."""
        later: list[tuple[CommitRecord, str]] = []
        problems: list[str] = []
        view = None
        at = number
        while view is None:
            if at == 0:
                view = EMPTY
            elif at in self._views:
                view = self._views[at]
            else:
                record, stored = self._record(at, *problems)
                later.append((record, stored))
                view = self._base_of(record, problems)
                at -= 1
        for record, stored in reversed(later):
            view = fold(view, record, stored)
            self._views[view.number] = view
        self.worked_around += problems
        return view

    def read_manifest(self, record: CommitRecord) -> CheckpointView:
        """The manifest that `record` brought with it, as the view to fold it onto."""
        name = record.manifest
        try:
            manifest = unseal("manifest", Manifest, self.storage.get(name), name)
        except ObjectMissing as cause:
            raise CorruptionError(f"{name} is missing; restore it from a copy of the storage") from cause
        if (manifest.number, manifest.parent) != (record.number, record.parent):
            raise CorruptionError(
                f"{name} belongs to another commit than {record.number}; restore it from a copy"
            )
        return from_manifest(manifest, name)

    def remember(self, view: CheckpointView, record: CommitRecord) -> None:
        """Spare later readers the way to storage for what was just committed."""
        self._records[view.number] = (record, view.checksum)
        self._views[view.number] = view

    def recall(self, view: CheckpointView) -> None:
        """Spare later readers the way to storage for a view that another has read, if the record that it ends
        with is still there and the same.
        """
        with suppress(CorruptionError):
            if view.number and self._record(view.number)[1] == view.checksum:
                self._views[view.number] = view

    def forget_below(self, number: int) -> None:
        """Free what is known about older commits."""
        for known in (self._records, self._views):
            for old in [n for n in known if n < number]:
                del known[old]

    def forget(self) -> None:
        """Free all that is known: what is in storage may be another copy."""
        self._records.clear()
        self._views.clear()

    def _base_of(self, record: CommitRecord, problems: list[str]) -> CheckpointView | None:
        """What to fold `record` onto, if that is known without the record before it."""
        if brings_manifest(record):
            try:
                return self.read_manifest(record)
            except CorruptionError as damage:
                problems.append(str(damage))
        if record.rewind_to is None:
            return None
        to, before = self.view_at(record.rewind_to), self._lasting_at(record.parent.number)
        known = before.settled.through
        if any(known.get(sink, 0) < epoch for sink, epoch in record.staged_through.items()):
            raise CorruptionError(
                f"which rows commit {record.number} keeps for sinks cannot be read any more; restore the "
                "storage from a copy, or rewind"
            )
        head = replace(
            to.head,
            number=record.parent.number,
            checksum=record.parent.checksum,
            published_through=record.published_through,
            rows_through=record.rows_through,
            lanes_through=record.lanes_through,
            channels=before.channels,
            barriers=self._barriers_at(record.parent.number) or to.barriers,
            staged=before.staged,
            settled=Settled(record.staged_through, record.lost_output),
            asked=before.asked,
        )
        return rewound(head, to)

    def _barriers_at(self, number: int) -> tuple[BarrierPlace, ...]:
        with suppress(CorruptionError):
            return self.view_at(number).barriers
        return ()

    def _lasting_at(self, number: int) -> CheckpointView:
        """What no rewind takes back, after a commit: its view, of which only channels, what was asked of
        other parts and what is staged for sinks count. Up to the first record that cannot be read: what a
        lost record has put there is to be computed again before what came after it."""
        floor = read_floor(self.storage)
        view = EMPTY
        # The floor may have passed it meanwhile: then nothing is known, and the reader looks again.
        known = number
        for known in range(number, floor - 1, -1):
            with suppress(CorruptionError):
                view = self.view_at(known)
                break
        with suppress(CorruptionError):
            for later in range(known + 1, number + 1):
                record = self.record(later)
                view = replace(
                    view,
                    channels=fold_channels(view.channels, record),
                    staged=with_staged(view.staged, record.staged),
                    settled=view.settled.after(record),
                    asked=fold_asked(view.asked, record),
                )
        return view

    def _record(self, number: int, *problems: str) -> tuple[CommitRecord, str]:
        if number in self._records:
            return self._records[number]
        name = names.commit(number)
        try:
            data = self.storage.get(name)
        except ObjectMissing as cause:
            told = "; ".join([*problems, f"{name} is missing"])
            raise CorruptionError(f"{told}; restore it from a copy of the storage, or rewind") from cause
        record = unseal("commit", CommitRecord, data, name)
        if record.number != number:
            raise CorruptionError(
                f"{name} holds commit {record.number}; restore it from a copy of the storage, or rewind"
            )
        self._records[number] = (record, checksum(data))
        return self._records[number]

    def _traces_of_commits(self) -> str:
        """What shows that there were commits once; empty: nothing does."""
        floor = read_floor(self.storage)
        if floor:
            return f"its floor is {floor}"
        # The manifest of commit 1 is written before there is any commit; it says nothing.
        manifests = [e.name for e in self.storage.list(names.MANIFESTS) if (names.number_of(e.name) or 0) > 1]
        return f"{manifests[-1]} exists" if manifests else ""

    def _damage(self, numbers: list[CommitNumber], cause: str) -> DamagedChain:
        readable = []
        for number in numbers:
            try:
                readable.append(self.record(number))
            except CorruptionError:
                continue
        lasting = self._lasting_at(numbers[-1])
        head = Head(
            number=numbers[-1],
            checksum=checksum(self.storage.get(names.commit(numbers[-1]))),
            term=max((record.term for record in readable), default=0),
            run=readable[-1].run if readable else "",
            clock_ms=max((record.clock_ms for record in readable), default=0),
            retained_from=max((record.retained_from for record in readable), default=1),
            published_through=readable[-1].published_through if readable else {},
            rows_through=readable[-1].rows_through if readable else {},
            lanes_through=readable[-1].lanes_through if readable else {},
            channels=lasting.channels,
            staged=lasting.staged,
            settled=lasting.settled,
            asked=lasting.asked,
        )
        for number in reversed([n for n in numbers[:-1] if n >= head.retained_from]):
            try:
                self.view_at(number)
            except CorruptionError:
                continue
            return DamagedChain(head, number, (cause,))
        return DamagedChain(head, CommitNumber(0), (cause,))


class NewestCommit:
    """Finds the newest commit again and again, mostly by a look at two names: numbers have no gaps.

    All names are listed when the next one is there, and every `list_seconds` all the same: the next may have
    come and gone, and a driver that was paused for very long may have put a deleted name back.
    """

    def __init__(self, history: History, clock: Clock, list_seconds: float) -> None:
        self._history, self._clock, self._list_seconds = history, clock, list_seconds
        self._listed = clock.monotonic()
        self._loaded = EMPTY

    def is_still(self, view: CheckpointView) -> bool:
        """Whether a commit is still the newest, as far as one can tell without listing."""
        if view.number == 0 or self._clock.monotonic() - self._listed >= self._list_seconds:
            return False
        return self._history.is_newest(view.number)

    def load(self) -> CheckpointView:
        """List all names; raises what `History.load` raises. A commit that was lost since it was read here
        counts no more, also where another has its number by now."""
        began = self._clock.monotonic()
        try:
            view = self._history.load()
            replaced = self._is_replaced(view)
        except CorruptionError:
            if not self._loaded.number:
                raise
            replaced = True
        if replaced:
            self._history.forget()
            view = self._history.load()
        self._listed, self._loaded = began, view
        return view

    def _is_replaced(self, newest: CheckpointView) -> bool:
        """Whether the commit that was loaded last is no longer one of those that lead to the newest."""
        loaded, history = self._loaded, self._history
        if not loaded.number or newest.number < loaded.number:
            return newest.number < loaded.number
        if newest.number > loaded.number:
            return history.record(loaded.number + 1).parent.checksum != loaded.checksum
        try:
            return checksum(history.storage.get(names.commit(loaded.number))) != loaded.checksum
        except ObjectMissing:
            return True


def brings_manifest(record: CommitRecord) -> bool:
    """Whether a full manifest was written for this very commit."""
    return record.manifest != "" and names.number_of(record.manifest) == record.number


def verify(history: History) -> list[str]:
    """Every damaged or missing record and manifest above the floor, one line each.

    Reads all of them from storage.
    """
    fresh = History(history.storage)
    numbers = fresh.numbers()
    problems: list[str] = []
    for number in range(numbers[0], numbers[-1] + 1) if numbers else ():
        try:
            record = fresh.record(number)
            if brings_manifest(record):
                fresh.read_manifest(record)
        except CorruptionError as damage:
            problems.append(str(damage))
    if not problems:
        try:
            fresh.load()
        except CorruptionError as damage:
            problems.append(str(damage))
    return problems


def newest_intact(
    history: History, head: Head, intact: Callable[[CheckpointView], bool]
) -> CheckpointView | None:
    """The newest retained commit whose records fold and whose files `intact` finds whole, if there is one.

    Asks `intact` newest first and stops at the first yes.
    """
    for number in range(head.number, max(head.retained_from, 1) - 1, -1):
        try:
            view = history.view_at(number)
        except CorruptionError:
            continue
        if intact(view):
            return view
    return None
