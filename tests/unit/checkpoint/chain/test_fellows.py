"""What a member of a set of replicas makes of a commit record that another member wrote first."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.checkpoint.chain.commits import Adopted, Chain, Committed, Preceded
from holdfast.checkpoint.chain.fellows import Met, differences, digest_of, is_same_work, met
from holdfast.checkpoint.chain.view import EMPTY, CheckpointView, news
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.envelope import seal
from holdfast.checkpoint.store.records import (
    CommitRecord,
    DeltaFile,
    Extent,
    FloorRecord,
    OperatorSchema,
    PartitionTime,
    SentFile,
    StagedFile,
)
from holdfast.ids import CommitNumber
from holdfast.state.contract import EMPTY_VERSION, NextDue, Version
from tests.unit.checkpoint.kept import MemoryStorage

RUN = "set"


def extent(member: int, checksum: str = "sum") -> Extent:
    return Extent(object=f"data/1/{member}", offset=member, length=9, checksum=checksum)


def delta(member: int, result: str = "content", **changes: Any) -> DeltaFile:
    made = DeltaFile(
        operator="op", first_group=0, end_group=4, parent=EMPTY_VERSION, extent=extent(member), entries=1,
        version=Version(epoch=1, attempt=1, result=result), next_due=NextDue(event_us=5),
    )  # fmt: skip
    return replace(made, **changes)


def staged(member: int, **changes: Any) -> StagedFile:
    made = StagedFile(stream="op", epoch=1, part=0, extent=extent(member), rows=1, sinks=("out",), input="i")
    return replace(made, **changes)


def sent(member: int, **changes: Any) -> SentFile:
    made = SentFile(channel="c", epoch=1, part=0, extent=extent(member), rows=1)
    return replace(made, **changes)


def epoch(member: int, view: CheckpointView = EMPTY, **changes: Any) -> CommitRecord:
    """A commit of the next epoch, as each member would write it."""
    number = view.last_epoch + 1
    made = CommitRecord(
        term=1, run=RUN, seat=member, first_epoch=number, last_epoch=number, attempts={str(number): 1},
        clock_ms=number, parallelism=1, fingerprint="f", positions={"in": number}, rows=3,
        event_times={"in": {"": PartitionTime(newest_us=4, seen_ms=number)}}, watermarks={"op": 2},
        published_through={"out": member - 1}, deltas=(delta(member),), staged=(staged(member),),
        sent=(sent(member),),
    )  # fmt: skip
    return replace(made, **changes)


def told(member: int, view: CheckpointView) -> CommitRecord:
    """News of a member, without an epoch."""
    record = news(view, term=1, run=RUN, published_through={"out": view.last_epoch})
    return replace(record, seat=member, parallelism=1)


def test_where_files_lie_and_what_is_shown_by_now_may_differ() -> None:
    assert met(epoch(1), epoch(2)) is Met.SAME
    assert differences(epoch(1), epoch(2)) == []
    assert digest_of(epoch(1)) == digest_of(epoch(2))


OTHER: dict[str, dict[str, Any]] = {
    "epochs": {"attempts": {"1": 2}},
    "positions": {"positions": {"in": 2}},
    "event times": {"watermarks": {"op": 3}},
    "rows": {"rows": 4},
    "state of operator 'op', key groups 0 to 3": {"deltas": (delta(2, "other"),)},
    "epoch 1: rows of 'op', part 0": {"staged": (staged(2, extent=extent(2, "other")),)},
    "epoch 1: rows in channel 'c', part 0": {"sent": ()},
}


@pytest.mark.parametrize("what", OTHER)
def test_what_members_have_to_agree_on_is_compared_and_named(what: str) -> None:
    ours, theirs = epoch(1), epoch(2, **OTHER[what])
    assert met(ours, theirs) is Met.OTHER
    assert differences(ours, theirs) == [what]
    assert digest_of(ours) != digest_of(theirs)


@pytest.mark.parametrize(
    "changed",
    [
        {"parent": Version(epoch=0, attempt=1, result="another state before")},
        {"extent": extent(2, "other bytes")},
        {"entries": 2},
        {"next_due": NextDue(event_us=6)},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_state_is_compared_to_the_last_bit(changed: dict[str, Any]) -> None:
    theirs = epoch(2, deltas=(delta(2, **changed),))
    assert differences(epoch(1), theirs) == ["state of operator 'op', key groups 0 to 3"]


def test_news_of_either_can_come_between() -> None:
    view = CheckpointView(number=1, last_epoch=1)
    for ours, theirs in ((epoch(1, view), told(2, view)), (told(1, view), epoch(2, view))):
        assert met(ours, theirs) is Met.BETWEEN
    assert met(told(1, view), told(2, view)) is Met.BETWEEN


def test_history_that_went_back_and_other_schemas_are_another_way() -> None:
    back = replace(told(2, EMPTY), rewind_to=1)
    assert met(epoch(1), back) is Met.OTHER
    assert met(back, told(1, EMPTY)) is Met.OTHER
    schema = OperatorSchema(uid="op", key=(), states=())
    named = epoch(1, operators=(schema,))
    assert met(named, epoch(2)) is Met.SAME
    assert met(named, epoch(2, operators=())) is Met.OTHER


def test_only_of_the_same_plans_is_it_known_that_a_member_is_wrong() -> None:
    assert is_same_work(epoch(1), epoch(2), plans_kept=True)
    assert not is_same_work(epoch(1), epoch(2, attempts={"1": 2}), plans_kept=True)
    assert not is_same_work(told(1, EMPTY), replace(told(2, EMPTY), rewind_to=1), plans_kept=True)


def test_plans_that_may_have_been_made_again_are_told_apart_by_when_and_of_what() -> None:
    ours = epoch(1, staged=(staged(1),))
    assert is_same_work(ours, epoch(2, staged=(staged(2, rows=9),)), plans_kept=False)
    for other in ({"staged": (staged(2, input="other slices"),)}, {"clock_ms": 9}, {"positions": {"in": 9}}):
        assert not is_same_work(ours, epoch(2, **{"staged": (staged(2),), **other}), plans_kept=False)


class Two:
    """Two members over one storage, the first with some commits."""

    def __init__(self, commits: int = 1, **settings: Any) -> None:
        self.storage = MemoryStorage()
        self.chains = [Chain(self.storage, **settings) for _ in range(2)]
        self.view = EMPTY
        for _ in range(commits):
            self.view = self.commit(1, epoch(1, self.view, deltas=(), staged=(), sent=())).view

    def commit(
        self, member: int, record: CommitRecord, view: CheckpointView | None = None
    ) -> Committed | Preceded | Adopted:
        return self.chains[member - 1].commit(view or self.view, record)


def bare(member: int, view: CheckpointView, **changes: Any) -> CommitRecord:
    return epoch(member, view, deltas=(), staged=(), sent=(), **changes)


def test_the_first_commit_counts_and_the_other_member_takes_it() -> None:
    two = Two()
    first, second = two.commit(1, bare(1, two.view)), two.commit(2, bare(2, two.view))
    assert isinstance(first, Committed)
    assert isinstance(second, Committed)
    assert (second.view, second.record.seat) == (first.view, 1)
    assert two.chains[1].view_at(2) == first.view


def test_a_member_whose_record_others_have_built_on_has_committed() -> None:
    two = Two()
    lost = two.commit(1, bare(1, two.view))
    two.commit(2, bare(2, lost.view), lost.view)
    again = two.commit(1, bare(1, two.view))
    assert isinstance(again, Committed)
    assert (again.view, again.record.seat) == (lost.view, 1)


def test_news_that_came_first_is_followed() -> None:
    two = Two()
    between = two.commit(2, told(2, two.view))
    done = two.commit(1, bare(1, two.view))
    assert isinstance(done, Preceded)
    assert (done.view, done.record.seat) == (between.view, 2)
    assert isinstance(two.commit(1, bare(1, done.view), done.view), Committed)


def test_other_results_are_adopted_and_told() -> None:
    two = Two(2)
    before, two.view = two.chains[0].view_at(1), two.chains[0].view_at(1)
    done = two.commit(2, bare(2, before, rows=4))
    assert isinstance(done, Adopted)
    assert (done.view.number, done.differences) == (2, ("rows",))


def test_of_other_plans_nothing_is_told() -> None:
    two = Two(2)
    before = two.chains[0].view_at(1)
    done = two.commit(2, bare(2, before, rows=4, attempts={"2": 2}), before)
    assert isinstance(done, Adopted)
    assert done.differences == ()


def test_a_rewind_of_a_fellow_is_no_divergence() -> None:
    two = Two(3)
    two.chains[0].rewind(two.view.head, CommitNumber(2), term=1, run=RUN)
    for ours in (told(2, two.view), bare(2, two.view)):
        done = two.commit(2, ours)
        assert isinstance(done, Adopted)
        assert (done.view.number, done.view.last_epoch, done.differences) == (4, 2, ())


def test_a_plan_that_was_given_up_may_be_another_by_now_and_nothing_is_told_of_its_results() -> None:
    two = Two(6, retain=2)
    before = two.chains[0].view_at(3)
    assert two.view.given_up_below == 4
    done = two.commit(2, bare(2, before, rows=4, clock_ms=99), before)
    assert isinstance(done, Adopted)
    assert done.differences == (), "commit 4 is given up: its plan may have been made again"
    later = two.chains[0].view_at(4)
    told_of = two.commit(2, bare(2, later, rows=4), later)
    assert isinstance(told_of, Adopted)
    assert told_of.differences == ("rows",)


def test_what_lies_below_the_floor_is_not_believed_though_a_fellow_wrote_it() -> None:
    two = Two(4, manifest_every=1)
    before = two.chains[0].view_at(1)
    floor = FloorRecord(floor=2, term=1, run=RUN)
    two.storage.put_new(names.floor(2), seal("floor", floor))
    two.storage.delete([names.commit(1), names.commit(2)])
    three = Chain(two.storage)
    late = three.commit(before, bare(1, before, published_through={"out": 7}))
    assert isinstance(late, Adopted)
    done = two.commit(2, bare(2, before), before)
    assert isinstance(done, Adopted), "the record under the number is one that came too late"
    assert done.differences == ()


def test_a_leader_alone_takes_no_record_of_its_own_run_for_its_own() -> None:
    two = Two()
    two.commit(1, bare(0, two.view))
    done = two.commit(2, bare(0, two.view, published_through={"out": 1}))
    assert isinstance(done, Adopted)
