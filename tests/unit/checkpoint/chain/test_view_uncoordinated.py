"""What a view keeps of operators whose keys are saved on their own."""

from __future__ import annotations

from msgspec.structs import replace as changed

from holdfast.checkpoint.chain.view import EMPTY, CheckpointView, fold, from_manifest, rewound, to_manifest
from holdfast.checkpoint.store.records import OperatorSchema, Parent, UncoordinatedShard
from holdfast.state.contract import Version
from tests.unit.checkpoint.kept import draft


def mark(first: int, unsaved: int, shards: int = 2, operator: str = "op") -> UncoordinatedShard:
    return UncoordinatedShard(
        operator=operator,
        shards=shards,
        first_group=first,
        end_group=first + 8 // shards,
        version=Version(epoch=1, attempt=1, result="r"),
        incarnation="i",
        unsaved=unsaved,
        discarded=0,
        lost=0,
    )


def following(view: CheckpointView, *marks: UncoordinatedShard, **more: object) -> CheckpointView:
    number, parent = view.number + 1, Parent(number=view.number, checksum=view.checksum)
    record = changed(draft(view), number=number, parent=parent, own_keys=marks, **more)
    return fold(view, record, f"sum-{number}")


def standing(view: CheckpointView, operator: str = "op") -> list[tuple[int, int, int]]:
    return [(each.shards, each.first_group, each.unsaved) for each in view.uncoordinated.get(operator, ())]


def test_the_newest_of_each_shard_holds() -> None:
    view = following(following(EMPTY, mark(4, 1), mark(0, 2)), mark(4, 9))
    assert standing(view) == [(2, 0, 2), (2, 4, 9)]


def test_those_of_another_number_of_shards_take_the_place_of_all() -> None:
    view = following(following(EMPTY, mark(0, 1), mark(4, 1)), mark(2, 5, shards=4))
    assert standing(view) == [(4, 2, 5)]


def test_operators_no_longer_in_force_are_dropped() -> None:
    view = following(EMPTY, mark(0, 1), mark(0, 1, operator="gone"))
    kept = OperatorSchema(uid="op", key=(("k", "string"),), states=())
    assert set(following(view, operators=(kept,)).uncoordinated) == {"op"}


def test_a_manifest_holds_them_and_a_rewind_brings_them_back() -> None:
    old = following(EMPTY, mark(0, 1))
    new = following(old, mark(0, 7))
    assert from_manifest(to_manifest(new), "m").uncoordinated == new.uncoordinated
    assert rewound(new.head, old).uncoordinated == old.uncoordinated
