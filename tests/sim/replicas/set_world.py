"""The simulated world of a part that a set of replicas leads.

On top of what holds for one leader (see `tests.sim.world`):

- a term is held by one set, and every record of that term says that it is of a member of it;
- a member comes to other results than were committed only after some member has lied; where members vote, and
  one of them lies, nothing of a lie is ever committed, and no other member is ever outvoted;
- what a member has of committed state rests on files that are kept for as long as its commit is;
- a barrier of the whole job falls once, and where a member has committed the end of the part, no member of
  its set commits anything after it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import msgspec

from holdfast.checkpoint.chain.retention import record_objects
from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.envelope import unseal
from holdfast.checkpoint.store.records import CommitRecord, DeltaFile, PlanRecord
from holdfast.errors import HoldfastError
from holdfast.storage.contract import Put
from tests.sim.event_time import SOURCE, Content, Violation, read
from tests.sim.world import World


class Told(Content, frozen=True):
    """What a task leaves. `lie`: other bytes than those that an honest member comes to."""

    lie: str = ""

    @staticmethod
    def of(data: bytes) -> Told:
        return msgspec.json.decode(data, type=Told)


@dataclass
class SetWorld(World):
    """One checkpoint, and the sets that lead it."""

    members: int = 2
    vote: bool = False
    liar: int = 0
    """The seat whose member lies; 0: none does."""
    lies: int = 0
    is_calm: bool = False
    """Nothing fails any more."""
    calm_from: int = 0
    """The newest commit then."""
    calm_sets: set[str] = field(default_factory=set)
    """The sets that were joined since."""
    barrier: int = 0
    """The newest barrier of the whole job."""
    contents: dict[int, list[bytes]] = field(default_factory=dict)
    """Epoch -> what is in the files for the sink that the first commit of it has named."""
    plans: dict[str, bytes] = field(default_factory=dict)
    """As they were written: one that is damaged since may be run by the member that made it."""

    # What processes tell.

    def create(self, name: str, data: bytes) -> Put:
        done = super().create(name, data)
        if name.startswith(names.PLANS) and done is Put.CREATED:
            self.plans[name] = data
        return done

    def remove(self, name: str) -> None:
        named = any(name == file.object for record in self.chain for file in record.snapshots)
        self.seen["snapshot left behind retired"] += name.startswith(names.SNAPSHOTS) and not named
        super().remove(name)

    def claimed(self, term: int, run: str) -> None:
        if self.terms.setdefault(term, run) != run:
            raise Violation(f"term {term} is held by the sets of {self.terms[term]} and of {run}")
        if self.is_calm:
            self.calm_sets.add(run)

    def stopped(self, term: int, error: HoldfastError, replaced: bool = False) -> None:
        if not replaced:
            super().stopped(term, error)

    def lied(self) -> None:
        self.lies += 1
        self.seen["lie"] += 1

    def diverged(self, seat: int, what: str) -> None:
        """A member was told that it has come to other results than the set."""
        self.seen["divergence"] += 1
        if not self.lies:
            raise Violation(f"member {seat} has come to other results, and no member lied: {what}")
        if self.vote and seat != self.liar:
            raise Violation(f"member {seat} is outvoted, and member {self.liar} is the one that lies: {what}")

    def thrown_away(self, run: str, after: CheckpointView, newest: CheckpointView) -> None:
        """A member of the set of `run` goes on from what another has committed, and not from what it has run
        after `after`."""
        self.seen["record adopted"] += 1
        # Commit 1 is given up from the beginning, and its plan with it: a slow member plans it again.
        known = newest.given_up_below <= self.calm_from
        # What members of a former set plan until they notice comes between the plans of this one.
        if self.is_calm and known and self.calm_sets == {run} and newest.run == run and not self.lies:
            raise Violation(f"nothing fails, and a member throws away what it has run after {after.number}")

    def damage_newest_plan(self) -> None:
        """A plan that was never committed cannot be read any more."""
        beside = self.objects_in(names.PLANS)
        newest = max(beside, default="")
        if (names.number_of(newest) or 0) > max(len(self.line) - 1, len(self.shown), *self.judged, 0):
            beside[newest] = b"damaged"
            self.seen["damaged plan"] += 1
            self.tell(f"finds {newest} damaged")

    def is_kept(self, number: int) -> bool:
        """Whether a commit can be gone back to."""
        return number in self._kept()

    # What must hold.

    def _grow(self, record: CommitRecord, stored: str) -> None:
        last = self.views[len(self.chain)]
        if last.ended and last.run == record.run and record.rewind_to is None:
            raise Violation(f"commit {record.number} follows commit {last.number}, the end of its own set")
        if record.run != self.terms.get(record.term, record.run):
            raise Violation(f"commit {record.number} of term {record.term} is of {record.run}")
        if record.barrier and any(place.number >= record.barrier for place in last.barriers):
            raise Violation(f"commit {record.number} carries barrier {record.barrier}, which has fallen")
        super()._grow(record, stored)
        for name in record_objects(record):
            if name.startswith(names.DATA) and Told.of(self.objects_in(name)[name]).lie:
                self.seen["lie committed"] += 1
                if self.vote:
                    raise Violation(f"commit {record.number} names {name}, which is a lie")
        self.seen["news between epochs"] += not record.attempts and record.rewind_to is None
        self.seen["barrier carried"] += record.barrier > 0
        self.seen["end committed"] += record.ended

    def _settle(self, record: CommitRecord) -> None:
        before = set(self.first)
        super()._settle(record)
        for epoch in self.first.keys() - before:
            self.contents[epoch] = self._read(self.first[epoch])

    def _are_same(self, epoch: int, files: list[str]) -> bool:
        """A member shows its own files, whose content is that of those that were committed."""
        return epoch in self.first and self._read(files) == self.contents[epoch]

    def _read(self, files: Collection[str]) -> list[bytes]:
        return sorted(self.objects_in(name)[name] for name in files)

    def _extend(self, record: CommitRecord, epoch: int, deltas: list[DeltaFile]) -> None:
        plan = self._planned(names.plan(epoch, record.attempts[str(epoch)]))
        if part := plan.slices.get(SOURCE):
            rows = [str(row) for row in read((part.start or 0, part.end))]
            if [entry[0] for entry in part.detail] != rows:
                raise Violation(f"epoch {epoch} loses or doubles rows: it reads {part.detail} for {rows}")
        super()._extend(record, epoch, deltas)

    def _planned(self, name: str) -> PlanRecord:
        return unseal("plan", PlanRecord, self.plans[name], name)

    def check_end(self) -> None:
        """At the end: everything is committed and shown."""
        if self.line[-1].through != self.available:
            raise Violation(
                f"nothing fails any more, but of {self.available} rows {self.line[-1].through} are committed"
            )
        self.check_whole()
