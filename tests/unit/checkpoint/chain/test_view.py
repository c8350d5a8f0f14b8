from __future__ import annotations

import time
from dataclasses import replace

import pytest
from msgspec.structs import replace as changed

from holdfast.checkpoint.chain import view as view_module
from holdfast.checkpoint.chain.live_files import SharedList
from holdfast.checkpoint.chain.view import EMPTY, CheckpointView, fold, from_manifest, rewound, to_manifest
from holdfast.checkpoint.store.records import (
    CommitRecord,
    OperatorSchema,
    Parent,
    PartitionTime,
)
from holdfast.errors import CorruptionError
from tests.unit.checkpoint.kept import OPERATOR, SINK, delta, draft, snapshot


def following(view: CheckpointView, record: CommitRecord) -> CheckpointView:
    number = view.number + 1
    parent = Parent(number=view.number, checksum=view.checksum)
    return fold(view, changed(record, number=number, parent=parent), f"sum-{number}")


def grown(count: int, view: CheckpointView = EMPTY) -> CheckpointView:
    for _ in range(count):
        view = following(view, draft(view))
    return view


def epochs(view: CheckpointView) -> list[int]:
    return [delta.version.epoch for delta in view.live_deltas(OPERATOR)]


def test_a_fold_adds_up() -> None:
    view = grown(3)
    assert (view.number, view.last_epoch, view.rows, view.positions) == (3, 3, 30, {"in": 3})
    assert epochs(view) == [1, 2, 3]


def test_deltas_live_until_two_snapshots_cover_them() -> None:
    view = grown(4)
    once = following(view, draft(view, snapshots=(snapshot(4),)))
    assert epochs(once) == [1, 2, 3, 4, 5], "one snapshot alone may turn out damaged"
    twice = following(once, draft(once, snapshots=(snapshot(5),)))
    assert epochs(twice) == [5, 6]


def test_a_delta_stays_while_one_of_its_key_groups_is_uncovered() -> None:
    view = grown(4)
    for epoch in (4, 5):
        view = following(view, draft(view, snapshots=(snapshot(epoch, 0, 3),)))
    assert epochs(view) == [1, 2, 3, 4, 5, 6]
    for epoch in (5, 6):
        view = following(view, draft(view, snapshots=(snapshot(epoch, 3, 4),)))
    assert epochs(view) == [5, 6, 7, 8]


def test_snapshots_of_other_ranges_count_after_rescaling() -> None:
    view = grown(2)
    view = following(view, draft(view, snapshots=(snapshot(2),), deltas=(delta(3, 0, 2), delta(3, 2, 4))))
    view = following(view, draft(view, snapshots=(snapshot(3, 0, 2), snapshot(3, 2, 4)), deltas=()))
    assert {file.version.epoch for file in view.snapshots[OPERATOR]} == {2, 3}
    assert epochs(view) == [3, 3]


def test_the_third_snapshot_retires_the_first() -> None:
    view = grown(1)
    for epoch in (1, 2, 3):
        view = following(view, draft(view, snapshots=(snapshot(epoch),)))
    assert [file.version.epoch for file in view.snapshots[OPERATOR]] == [2, 3]


def test_staged_output_lives_until_every_sink_has_it() -> None:
    view = EMPTY
    for _ in range(3):
        view = following(view, draft(view, published=0))
    view = following(view, changed(draft(view), published_through={SINK: 3, "slow": 1}))
    assert [file.epoch for file in view.staged] == [2, 3, 4]
    view = following(view, changed(draft(view), published_through={SINK: 4, "slow": 4}))
    assert [file.epoch for file in view.staged] == [5]


def test_a_record_that_names_no_sink_changes_nothing_for_them() -> None:
    view = grown(2)
    assert following(view, changed(draft(view), published_through={})).published_through == {SINK: 1}


def test_a_sink_that_left_the_job_holds_nothing_back() -> None:
    view = following(EMPTY, changed(draft(EMPTY), published_through={SINK: 0, "gone": 0}))
    view = following(view, draft(view))
    assert [file.epoch for file in view.staged] == [2]


def test_what_a_lane_has_shown_never_shrinks_and_leaves_with_its_sink() -> None:
    def told(lanes: dict[str, tuple[int, int]], *sinks: str) -> CommitRecord:
        return changed(
            draft(view),
            published_through=dict.fromkeys(sinks or ("out",), 0),
            lanes_through={"out": lanes} if lanes else {},
        )

    view = EMPTY
    view = following(view, told({"0": (1, 5), "3": (1, 2)}))
    assert view.lanes_through == {"out": {"0": (1, 5), "3": (1, 2)}}
    view = following(view, told({"0": (1, 4), "7": (2, 1)}))
    known = {"out": {"0": (1, 5), "3": (1, 2), "7": (2, 1)}}
    assert view.lanes_through == known
    assert following(view, told({})).lanes_through == known, "a record that says nothing changes nothing"
    assert from_manifest(to_manifest(view), "m").lanes_through == known
    assert rewound(view.head, EMPTY).lanes_through == known, "a rewind takes back nothing that is shown"
    assert following(view, told({}, "other")).lanes_through == {}


def test_snapshots_that_say_no_schema_are_marked_when_it_changes() -> None:
    first = OperatorSchema(uid=OPERATOR, key=(("k", "string"),), states=())
    view = grown(3)
    view = following(view, changed(draft(view, snapshots=(snapshot(1, 0, 4),)), operators=(first,)))
    # The same schema again, as every run says it: nothing changes.
    view = following(view, changed(draft(view, snapshots=(snapshot(2, 0, 4),)), operators=(first,)))
    assert [file.schema for file in view.snapshots[OPERATOR]] == [None, None]
    second = changed(first, generation=1, before=first)
    new = changed(snapshot(3, 0, 4), schema=changed(second, before=None))
    view = following(view, changed(draft(view, snapshots=(new,)), operators=(second,)))
    assert [file.schema for file in view.snapshots[OPERATOR]] == [first, changed(second, before=None)]
    third = changed(second, generation=2, before=second)
    view = following(view, changed(draft(view), operators=(third,)))
    assert [file.schema for file in view.snapshots[OPERATOR]] == [first, changed(second, before=None)]
    assert fold_back(view) == view.snapshots


def fold_back(view: CheckpointView) -> object:
    """The snapshots as a manifest keeps them."""
    return from_manifest(to_manifest(view), "m").snapshots


def test_state_of_operators_no_longer_in_force_is_dropped() -> None:
    view = grown(2)
    other = OperatorSchema(uid="other", key=(), states=())
    dropped = following(view, changed(draft(view, deltas=()), operators=(other,)))
    assert dropped.deltas == {}
    assert dropped.operators == (other,)


def test_a_manifest_holds_the_whole_view() -> None:
    view = grown(3)
    view = following(view, changed(draft(view, snapshots=(snapshot(2),)), notes={"in": ("file-1", "file-2")}))
    back = from_manifest(to_manifest(view), "m")
    assert replace(back, manifest=view.manifest, given_up_below=view.given_up_below) == view


def test_notes_that_replace_leave_those_of_other_sources_and_of_older_views() -> None:
    view = grown(1)
    view = following(view, changed(draft(view), notes={"in": ("a", "b"), "other": ("x",)}))
    later = following(view, changed(draft(view), notes={"in": ("b", "c")}, notes_replaced=("in",)))
    emptied = following(later, changed(draft(later), notes={}, notes_replaced=("in",)))
    told = [{uid: list(notes) for uid, notes in seen.notes.items()} for seen in (view, later, emptied)]
    assert told == [{"in": ["a", "b"], "other": ["x"]}, {"in": ["b", "c"], "other": ["x"]}, {"other": ["x"]}]
    assert from_manifest(to_manifest(later), "m").notes == later.notes


def timed(epoch: int, **more: int) -> dict[str, object]:
    times = {"in": {"": PartitionTime(newest_us=epoch * 1_000, seen_ms=epoch)}}
    return {"event_times": times, "watermarks": {OPERATOR: epoch * 500}, **more}


def told(view: CheckpointView) -> dict[str, object]:
    return {
        "event_times": view.event_times,
        "watermarks": view.watermarks,
        "closed_through": view.closed_through,
    }


def test_event_time_is_that_of_the_newest_commit_that_says_one_and_goes_back_with_a_rewind() -> None:
    first = following(EMPTY, changed(draft(EMPTY), **timed(1)))
    second = following(first, changed(draft(first), **timed(2, closed_through=2)))
    silent = following(second, draft(second))
    assert told(silent) == told(second) == timed(2, closed_through=2)
    assert from_manifest(to_manifest(silent), "m").event_times == silent.event_times
    assert told(from_manifest(to_manifest(silent), "m")) == told(silent)
    assert told(rewound(silent.head, first)) == timed(1, closed_through=0)


def test_rewinding_brings_back_state_and_keeps_what_was_published() -> None:
    old = grown(3)
    head = following(old, draft(old, epochs=4))
    head = following(head, draft(head))
    base = rewound(head.head, old)
    assert (base.number, base.last_epoch, base.positions) == (head.number, 3, {"in": 3})
    assert base.published_through == {SINK: 7}
    assert list(base.staged) == []
    assert epochs(base) == [1, 2, 3]


def test_two_histories_from_one_view_do_not_mix() -> None:
    old = grown(3)
    left = following(old, draft(old, deltas=(delta(4, 0, 2),)))
    right = following(old, draft(old, deltas=(delta(4, 2, 4),)))
    again = following(old, draft(old))
    assert [d.first_group for d in left.live_deltas(OPERATOR)] == [0, 0, 0, 0]
    assert [d.first_group for d in right.live_deltas(OPERATOR)] == [0, 0, 0, 2]
    assert epochs(again) == [1, 2, 3, 4]
    assert epochs(old) == [1, 2, 3]


@pytest.mark.parametrize(
    "wrong",
    [
        {"number": 5},
        {"parent": Parent(number=3, checksum="another history's")},
        {"term": 0},
        {"first_epoch": 3},
        {"first_epoch": 5},
        {"last_epoch": 2},
        {"retained_from": 0},
        {"snapshots": (snapshot(9),)},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_record_that_does_not_follow_is_refused(wrong: dict[str, object]) -> None:
    view = grown(3)
    right = changed(draft(view), number=4, parent=Parent(number=3, checksum="sum-3"))
    fold(view, right, "sum-4")
    with pytest.raises(CorruptionError, match="does not continue the chain"):
        fold(view, changed(right, **wrong), "sum-4")


def test_without_the_parent_check_another_history_slips_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control of the test above: it is the check that refuses, and nothing else."""
    view = grown(3)
    monkeypatch.setattr(view_module, "_refuse_unless_next", lambda view, record: None)
    alien = changed(draft(view), number=4, parent=Parent(number=3, checksum="another history's"))
    assert fold(view, alien, "sum-4").number == 4


def test_the_cost_of_a_fold_follows_the_record() -> None:
    """A fold after 20,000 deltas and 200,000 notes takes about as long as one after 100."""

    def cost(view: CheckpointView) -> float:
        best = float("inf")
        for _ in range(50):
            record = changed(
                draft(view), number=view.number + 1, notes={"in": ("one more",)},
                parent=Parent(number=view.number, checksum=view.checksum),
            )  # fmt: skip
            started = time.perf_counter()
            view = fold(view, record, "sum")
            best = min(best, time.perf_counter() - started)
        return best

    many = SharedList(delta(epoch) for epoch in range(1, 20_001))
    big = replace(
        EMPTY, number=1, last_epoch=20_000, deltas={OPERATOR: {(0, 4): many}},
        notes={"in": SharedList(str(n) for n in range(200_000))},
    )  # fmt: skip
    small = grown(100)
    assert cost(big) < 5 * cost(small)
