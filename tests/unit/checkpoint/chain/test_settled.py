"""What a rewind keeps for sinks."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace as changed

from holdfast.checkpoint.chain.settled import Settled
from holdfast.checkpoint.chain.view import EMPTY, CheckpointView, fold, from_manifest, rewound, to_manifest
from holdfast.checkpoint.store.records import Extent, Parent, StagedFile
from tests.unit.checkpoint.kept import draft


def staged(epoch: int, *sinks: str, made: str = "first") -> StagedFile:
    extent = Extent(object=f"data/{epoch}/{made}", offset=0, length=1, checksum="")
    return StagedFile(stream="s", epoch=epoch, part=0, extent=extent, rows=1, sinks=sinks)


def after(
    view: CheckpointView,
    *files: StagedFile,
    settled: Mapping[str, int] = {},
    rewind_to: int | None = None,
    **shown: int,
) -> CheckpointView:
    """The view after a commit of one epoch. `settled`: what it says of that."""
    record = draft(view, epochs=0 if rewind_to is not None else 1, deltas=())
    record = changed(
        record, number=view.number + 1, parent=Parent(number=view.number, checksum=view.checksum),
        staged=files, published_through=shown, staged_through=dict(settled),
        rewind_to=rewind_to, lost_output=dict(view.settled.lost) if rewind_to is not None else {},
    )  # fmt: skip
    return fold(view, record, f"checksum-{record.number}")


def waiting(view: CheckpointView) -> list[tuple[int, str, tuple[str, ...]]]:
    return [(file.epoch, file.extent.object, file.sinks) for file in view.staged]


def gone_back(base: CheckpointView, **shown: int) -> CheckpointView:
    """The view after a rewind to commit 1, which `base` was made for."""
    return after(base, settled=base.settled.through, rewind_to=1, **shown)


def three(**settled: int) -> list[CheckpointView]:
    """Three epochs for two sinks: `a` has shown all of them, `b` none."""
    views = [EMPTY]
    for epoch in (1, 2, 3):
        views.append(after(views[-1], staged(epoch, "a", "b"), settled=settled, a=epoch - 1, b=0))
    return views


def test_a_rewind_keeps_what_was_committed_for_a_sink_that_is_behind() -> None:
    _, first, _, third = three()
    base = rewound(third.head, first)
    assert base.last_epoch == 1
    assert [epoch for epoch, *_ in waiting(base)] == [1, 2, 3]
    assert [base.settled.covers("b", epoch) for epoch in (1, 2, 3, 4)] == [True, True, True, False]


def test_a_rewind_that_says_nothing_of_it_has_kept_nothing() -> None:
    _, first, _, third = three()
    old = after(rewound(third.head, first), rewind_to=1, a=2, b=0)
    assert old.settled == Settled()
    again = after(old, staged(2, "b"), a=2, b=0)
    assert [again.settled.covers("b", epoch) for epoch in (2, 3)] == [True, False]


def test_a_commit_before_its_rows_settles_nothing() -> None:
    _, first, _, third = three(a=0, b=0)
    base = rewound(third.head, first)
    assert [epoch for epoch, *_ in waiting(base)] == [1]
    assert not base.settled.covers("b", 2)


def test_what_follows_from_commits_is_not_written_into_manifests() -> None:
    _, first, _, third = three()
    assert not to_manifest(third).staged_through
    began = gone_back(rewound(third.head, first), a=2, b=0)
    assert to_manifest(began).staged_through == {"a": 3, "b": 3}
    for view in (third, began, three(a=0, b=0)[-1]):
        assert from_manifest(to_manifest(view), "m").settled == view.settled


def test_damaged_rows_are_lost_to_the_sinks_that_have_not_shown_them_and_no_others() -> None:
    _, first, _, third = three()
    base = rewound(third.head, first, [staged(2, "a", "b")])
    assert waiting(base) == [(1, "data/1/first", ("a", "b")), (2, "data/2/first", ("a",)),
                             (3, "data/3/first", ("a", "b"))]  # fmt: skip
    assert base.settled.lost == {"b": (2,)}
    assert (base.settled.ready_through("a"), base.settled.ready_through("b")) == (3, 1)
    assert from_manifest(to_manifest(base), "m").settled == base.settled
    # Computed again, these rows take their place: before what came after them, and for good.
    began = gone_back(base, a=2, b=0)
    again = after(began, staged(2, "b", made="again"), a=2, b=0)
    assert [name for epoch, name, sinks in waiting(again) if "b" in sinks] == [
        "data/1/first", "data/2/again", "data/3/first"]  # fmt: skip
    assert not again.settled.lost
    assert waiting(rewound(again.head, first)) == waiting(again)


def test_a_commit_before_which_rows_were_lost_cannot_hold_again() -> None:
    _, first, second, third = three()
    began = gone_back(rewound(third.head, first, [staged(2, "b")]), a=2, b=0)
    assert rewound(began.head, second).settled.waits_for(2)
    assert not rewound(began.head, first).settled.waits_for(1)


def test_a_sink_that_joins_after_a_rewind_gets_what_is_computed_again() -> None:
    _, first, _, third = three()
    began = gone_back(rewound(third.head, first), a=2, b=0)
    assert not began.settled.covers("later", 2)
    joined = after(began, staged(2, "later", made="again"), a=2, b=0, later=1)
    assert [epoch for epoch, *_ in waiting(joined)] == [1, 2, 2, 3]
    assert dict(joined.settled.through) == {"a": 3, "b": 3, "later": 2}
    assert rewound(joined.head, first).settled.covers("later", 2)
