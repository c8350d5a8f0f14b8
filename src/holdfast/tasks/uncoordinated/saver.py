"""Saves and fetches states of keys outside the path of the rows: the threads of one worker process.

Spark keeps a Python worker for the next task, and its threads go on meanwhile. They end with the process, and
nothing is lost by that: a key is dirty until a task has read that its save is durable.
Always true: the thread that processes rows never serialises, stores or waits for room; it waits for fetches
alone (see fetcher). A key has at most one save under way, and a shard at most one process that saves.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from msgspec.structs import replace

from holdfast.errors import CorruptionError
from holdfast.graph.functions import overrides
from holdfast.graph.uncoordinated import Uncoordinated
from holdfast.state.files.saved_key import (
    CUSTOM,
    ENTRIES,
    Item,
    SavedKey,
    as_objects,
    pack_entries,
    state_id,
    unpack,
)
from holdfast.state.files.schema_conversion import Lineage
from holdfast.storage.key_saves.contract import SaveSuperseded, StateId
from holdfast.tasks.messages import SaveCounts, Workspace
from holdfast.tasks.uncoordinated.durable_saves import Ack, AckLog
from holdfast.tasks.uncoordinated.fetcher import Fetcher
from holdfast.tasks.uncoordinated.thread_pool import pool_of

GIVE_WAY_SECONDS = 1.0
"""How long a request to serialise or store waits for the rows to be processed: longer than most epochs take,
and short enough for saves to keep coming beside one that takes minutes."""


@dataclass(frozen=True)
class SavedOperator:
    """An operator whose keys are saved on their own, as one run's tasks know it."""

    workspace: Workspace
    uid: str
    run: str
    term: int
    function: Any
    lineage: Lineage
    settings: Uncoordinated


@dataclass(frozen=True, slots=True)
class SaveJob:
    """One key as it stood when it was taken: nothing here changes afterwards."""

    base: bytes
    entries: list[Item]
    events: int
    unfetched: bool


@dataclass(frozen=True, slots=True)
class Taken:
    """Of which copy, when, and by whose order some keys were taken."""

    incarnation: bytes
    term: int
    epoch: int
    tag: bytes
    """Of the version that the keys were taken at."""
    taken_ms: int
    generation: int

    def ack(self, job: SaveJob) -> Ack:
        return Ack(self.incarnation, self.epoch, self.tag, job.events, self.taken_ms, job.base)


Ready = tuple[SaveJob, bytes]
"""A key and the bytes to store."""


class Flight:
    """What is under way for one shard, and the right to save its keys, held while anything is."""

    def __init__(self, log: AckLog) -> None:
        self.log = log
        self._changed = threading.Condition()
        self._under_way: set[bytes] = set()
        self._right: BinaryIO | None = None

    def begin(self, bases: Sequence[bytes]) -> bool:
        """False: another process saves this shard's keys now."""
        with self._changed:
            if self._right is None:
                self._right = self.log.try_to_save()
            if self._right is None:
                return False
            self._under_way.update(bases)
            return True

    def end(self, bases: Sequence[bytes]) -> None:
        with self._changed:
            self._under_way.difference_update(bases)
            if not self._under_way and self._right is not None:
                self._right.close()
                self._right = None
            self._changed.notify_all()

    def under_way(self) -> frozenset[bytes]:
        with self._changed:
            return frozenset(self._under_way)

    def wait(self, seconds: float) -> bool:
        """Whether everything ended in time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._under_way, seconds)


class Saver:
    """What saves and fetches the keys of one operator in this process, and the counts of both."""

    def __init__(self, operator: SavedOperator) -> None:
        self.run, self._function = operator.run, operator.function
        self._layout, settings = operator.lineage.layout, operator.settings
        self._storage, self._batch = settings.storage, settings.batch
        self._serializing = pool_of("serialize", settings, settings.serializing, steps_back=True)
        self._storing = pool_of("store", settings, settings.storing, steps_back=True)
        self.fetcher = Fetcher(settings, self._layout, self.count)
        self._custom = overrides(self._function, "serialize_state")
        self._told = overrides(self._function, "clear_dirty")
        self._between_epochs = threading.Event()
        self._between_epochs.set()
        self._lock = threading.Lock()
        self._counts = SaveCounts()
        self._flights: dict[Path, Flight] = {}

    # Saving: begun by the thread that processes rows, done by others.

    def give_way(self) -> None:
        """Rows are about to be processed: threads that save begin nothing, for a while."""
        self._between_epochs.clear()

    def go_on(self) -> None:
        """The rows are processed."""
        self._between_epochs.set()

    def flight(self, log: AckLog) -> Flight:
        return self._flights.setdefault(log.directory, Flight(log))

    def room(self) -> int:
        """How many keys may be submitted now."""
        return min(self._serializing.room, self._storing.room) * self._batch

    def save(self, log: AckLog, taken: Taken, jobs: Sequence[SaveJob]) -> None:
        """Begin to save some keys. Never waits."""
        flight = self.flight(log)
        jobs = sorted(jobs, key=lambda job: self._storage.near(state_id(self._layout, job.base)))
        for start in range(0, len(jobs), self._batch):
            batch = jobs[start : start + self._batch]
            bases = [job.base for job in batch]
            if not flight.begin(bases):
                self.count(rejected=len(jobs) - start)
                return
            if not self._serializing.submit(partial(self._serialize, flight, taken, batch)):
                self.count(rejected=len(batch))
                flight.end(bases)

    def _serialize(self, flight: Flight, taken: Taken, jobs: Sequence[SaveJob]) -> None:
        self._between_epochs.wait(GIVE_WAY_SECONDS)
        ready = []
        for job in jobs:
            try:
                ready.append((job, self._packed(taken, job)))
            except Exception as error:  # of the user's serialize_state
                self.count(failed=1, error=f"serialize_state: {type(error).__name__}: {error}")
                flight.end([job.base])
        if ready and not self._storing.submit(partial(self._store, flight, taken, ready)):
            self.count(rejected=len(ready))
            flight.end([job.base for job, _ in ready])

    def _packed(self, taken: Taken, job: SaveJob) -> bytes:
        if self._custom:
            body = self._function.serialize_state(as_objects(self._layout, job.entries))
            form = CUSTOM
        else:
            body, form = pack_entries(job.base, job.entries), ENTRIES
        saved = SavedKey(taken.term, taken.epoch, taken.incarnation, taken.generation, job.events, form, body)
        return saved.pack()

    def _store(self, flight: Flight, taken: Taken, ready: Sequence[Ready]) -> None:
        self._between_epochs.wait(GIVE_WAY_SECONDS)
        try:
            for part in self._saved(taken, ready):
                flight.log.append([taken.ack(job) for job, _ in part])
                self.count(saved=len(part))
                if self._told:
                    for job, _ in part:
                        self._function.clear_dirty(state_id(self._layout, job.base).key)
        except Exception as error:  # whatever a storage raises: the keys stay dirty and are tried again
            self.count(failed=len(ready), error=f"{type(error).__name__}: {error}")
        finally:
            flight.end([job.base for job, _ in ready])

    def _saved(self, taken: Taken, ready: Sequence[Ready]) -> Iterator[Sequence[Ready]]:
        """Those of the jobs that are durable now."""
        unsure = [job.base for job, _ in ready if job.unfetched]
        if unsure:
            foreign = self._foreign(taken, unsure)
            self.count(held_back=len(foreign))
            ready = [each for each in ready if each[0].base not in foreign]
        saves = [(state_id(self._layout, job.base), data) for job, data in ready]
        try:
            self._storage.save_many(saves)
            yield ready
        except SaveSuperseded:
            # The storage refuses a batch for any one of its keys: one by one, the others are saved.
            for each, (id, data) in zip(ready, saves, strict=True):
                try:
                    self._storage.save(id, data)
                except SaveSuperseded as error:
                    self.count(superseded=1, error=str(error))
                else:
                    yield [each]

    def _foreign(self, taken: Taken, bases: Sequence[bytes]) -> set[bytes]:
        """The keys of which a save exists that this copy does not go on from."""
        ids = [state_id(self._layout, base) for base in bases]
        found = self._storage.fetch_many(ids)
        return {
            base
            for base, id, data in zip(bases, ids, found, strict=True)
            if data is not None and _incarnation(data, id) != taken.incarnation
        }

    # Counting: by any thread.

    def count(self, error: str = "", **more: int) -> None:
        with self._lock:
            sums = {name: getattr(self._counts, name) + number for name, number in more.items()}
            self._counts = replace(self._counts, **sums, error=error or self._counts.error)

    def has_failed(self) -> bool:
        """Whether saves went wrong since counts were last taken."""
        with self._lock:
            return bool(self._counts.failed or self._counts.superseded or self._counts.held_back)

    def take_counts(self) -> SaveCounts:
        """What was counted since it was last taken."""
        with self._lock:
            counts, self._counts = self._counts, SaveCounts()
            return counts


def _incarnation(data: bytes, id: StateId) -> bytes | None:
    """Which copy made a save. None: it is damaged, and stays for a person to look at."""
    try:
        return unpack(data, id).incarnation
    except CorruptionError:
        return None


_savers: dict[tuple[str, str], Saver] = {}


def saver_of(operator: SavedOperator) -> Saver:
    """The saver of an operator in this process; a new run, which may have other settings, gets its own."""
    key = (operator.workspace.identity, operator.uid)
    if key not in _savers or _savers[key].run != operator.run:
        _savers[key] = Saver(operator)
    return _savers[key]


# Threads do not survive a fork.
os.register_at_fork(after_in_child=_savers.clear)
