"""What a rewind keeps for sinks, of checkpoints that say what is settled and of older ones."""

from __future__ import annotations

from msgspec.structs import replace as changed

from holdfast.checkpoint.chain.settled import Settled
from holdfast.checkpoint.chain.view import EMPTY, CheckpointView, fold, from_manifest, rewound, to_manifest
from holdfast.checkpoint.store.records import Extent, Parent, StagedFile
from tests.unit.checkpoint.kept import draft


def staged(epoch: int, *sinks: str, made: str = "first") -> StagedFile:
    extent = Extent(object=f"data/{epoch}/{made}", offset=0, length=1, checksum="")
    return StagedFile(stream="s", epoch=epoch, part=0, extent=extent, rows=1, sinks=sinks)


def after(
    view: CheckpointView, *files: StagedFile, settles: bool = True, rewind_to: int | None = None, **shown: int
) -> CheckpointView:
    """The view after a commit of one epoch."""
    record = draft(view, epochs=0 if rewind_to is not None else 1, deltas=())
    known = view.settled.through
    settled = {sink: max(record.last_epoch, known.get(sink, 0)) for sink in shown}
    record = changed(
        record, number=view.number + 1, parent=Parent(number=view.number, checksum=view.checksum),
        staged=files, published_through=shown, staged_through=settled if settles else {},
        rewind_to=rewind_to, lost_output=dict(view.settled.lost) if rewind_to is not None else {},
    )  # fmt: skip
    return fold(view, record, f"checksum-{record.number}")


def waiting(view: CheckpointView) -> list[tuple[int, str, tuple[str, ...]]]:
    return [(file.epoch, file.extent.object, file.sinks) for file in view.staged]


def three(settles: bool = True) -> list[CheckpointView]:
    """Three epochs for two sinks: `a` has shown all of them, `b` none."""
    views = [EMPTY]
    for epoch in (1, 2, 3):
        views.append(after(views[-1], staged(epoch, "a", "b"), settles=settles, a=epoch - 1, b=0))
    return views


def test_a_rewind_keeps_what_was_committed_for_a_sink_that_is_behind() -> None:
    _, first, _, third = three()
    base = rewound(third.head, first)
    assert base.last_epoch == 1
    assert [epoch for epoch, *_ in waiting(base)] == [1, 2, 3]
    assert [base.settled.covers("b", epoch) for epoch in (1, 2, 3, 4)] == [True, True, True, False]


def test_records_that_do_not_say_what_is_settled_are_gone_back_to_as_before() -> None:
    _, first, _, third = three(settles=False)
    base = rewound(third.head, first)
    assert [epoch for epoch, *_ in waiting(base)] == [1]
    assert not base.settled.covers("b", 2)
    assert after(base, settles=False, rewind_to=1, a=2, b=0).settled == Settled()


def test_damaged_rows_are_lost_to_the_sinks_that_have_not_shown_them_and_no_others() -> None:
    _, first, _, third = three()
    base = rewound(third.head, first, [staged(2, "a", "b")])
    assert waiting(base) == [(1, "data/1/first", ("a", "b")), (2, "data/2/first", ("a",)),
                             (3, "data/3/first", ("a", "b"))]  # fmt: skip
    assert base.settled.lost == {"b": (2,)}
    assert (base.settled.ready_through("a"), base.settled.ready_through("b")) == (3, 1)
    assert from_manifest(to_manifest(base), "m").settled == base.settled
    # Computed again, these rows take their place: before what came after them, and for good.
    began = after(base, rewind_to=1, a=2, b=0)
    again = after(began, staged(2, "b", made="again"), a=2, b=0)
    assert [name for epoch, name, sinks in waiting(again) if "b" in sinks] == [
        "data/1/first", "data/2/again", "data/3/first"]  # fmt: skip
    assert not again.settled.lost
    assert waiting(rewound(again.head, first)) == waiting(again)


def test_a_commit_before_which_rows_were_lost_cannot_hold_again() -> None:
    _, first, second, third = three()
    began = after(rewound(third.head, first, [staged(2, "b")]), rewind_to=1, a=2, b=0)
    assert rewound(began.head, second).settled.waits_for(2)
    assert not rewound(began.head, first).settled.waits_for(1)


def test_a_sink_that_joins_after_a_rewind_gets_what_is_computed_again() -> None:
    _, first, _, third = three()
    began = after(rewound(third.head, first), rewind_to=1, a=2, b=0)
    assert not began.settled.covers("later", 2)
    joined = after(began, staged(2, "later", made="again"), a=2, b=0, later=1)
    assert [epoch for epoch, *_ in waiting(joined)] == [1, 2, 2, 3]
    assert dict(joined.settled.through) == {"a": 3, "b": 3, "later": 2}
    assert rewound(joined.head, first).settled.covers("later", 2)
