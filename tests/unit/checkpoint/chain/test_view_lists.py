"""Lists of operators without keys, from commit to commit."""

from __future__ import annotations

from dataclasses import replace

from msgspec.structs import replace as changed

from holdfast.checkpoint.chain.live_files import with_lists
from holdfast.checkpoint.chain.retention import record_objects
from holdfast.checkpoint.chain.view import (
    EMPTY,
    CheckpointView,
    fold,
    from_manifest,
    rewound,
    to_manifest,
)
from holdfast.checkpoint.store.envelope import seal
from holdfast.checkpoint.store.records import (
    CommitRecord,
    ListFile,
    OperatorSchema,
    Parent,
    StateSchema,
)
from tests.unit.checkpoint.kept import draft, extent


def kept(epoch: int, shards: int, shard: int, state: str = "seen", operator: str = "op") -> ListFile:
    where = extent(f"data/{epoch:012d}/{operator}-{shards}-{shard}-{state}")
    return ListFile(operator=operator, shards=shards, shard=shard, state=state, extent=where, items=epoch)


def following(view: CheckpointView, *lists: ListFile, **more: object) -> CheckpointView:
    number = view.number + 1
    parent = Parent(number=view.number, checksum=view.checksum)
    record = changed(draft(view), number=number, parent=parent, lists=lists, **more)
    return fold(view, record, f"sum-{number}")


def shown(view: CheckpointView, operator: str = "op") -> list[tuple[int, int, int]]:
    return [(file.shards, file.shard, file.items) for file in view.lists.get(operator, ())]


def schema(uid: str, *states: str) -> OperatorSchema:
    kinds = [StateSchema(id=id, name=name, kind="list", type="string") for id, name in enumerate(states, 1)]
    return OperatorSchema(uid=uid, key=(), states=tuple(kinds))


def test_the_newest_list_of_each_shard_holds() -> None:
    view = following(EMPTY, kept(1, 2, 1), kept(1, 2, 0))
    view = following(view, kept(2, 2, 1))
    view = following(view)
    assert shown(view) == [(2, 0, 1), (2, 1, 2)]


def test_lists_of_another_number_of_shards_take_the_place_of_all() -> None:
    view = following(EMPTY, kept(1, 3, 0), kept(1, 3, 1), kept(1, 3, 2))
    view = following(view, kept(2, 1, 0), kept(2, 2, 0, operator="other"))
    assert shown(view) == [(1, 0, 2)]
    assert shown(view, "other") == [(2, 0, 2)]


def test_several_epochs_of_one_commit_count_in_their_order() -> None:
    files = [kept(1, 2, 0), kept(1, 2, 1), kept(2, 3, 0), kept(2, 3, 1), kept(2, 3, 2), kept(3, 3, 1)]
    assert [(f.shards, f.shard, f.items) for f in with_lists({}, files)["op"]] == [
        (3, 0, 2),
        (3, 1, 3),
        (3, 2, 2),
    ]


def test_lists_of_operators_and_states_no_longer_in_force_are_dropped() -> None:
    view = following(EMPTY, kept(1, 1, 0), kept(1, 1, 0, "old"), kept(1, 1, 0, operator="gone"))
    view = following(view, operators=(schema("op", "seen"),))
    assert [(file.operator, file.state) for files in view.lists.values() for file in files] == [
        ("op", "seen")
    ]


def test_a_manifest_holds_the_lists() -> None:
    view = following(EMPTY, kept(1, 2, 0), kept(1, 2, 1), kept(1, 3, 1, operator="other"))
    back = from_manifest(to_manifest(view), "m")
    assert back.lists == view.lists
    assert replace(back, manifest=view.manifest, given_up_below=view.given_up_below) == view


def test_rewinding_brings_back_the_lists() -> None:
    old = following(EMPTY, kept(1, 2, 0), kept(1, 2, 1))
    head = following(old, kept(2, 1, 0))
    assert rewound(head.head, old).lists == old.lists


def test_the_objects_of_lists_are_needed() -> None:
    view = following(following(EMPTY, kept(1, 2, 0), kept(1, 2, 1)), kept(2, 2, 1))
    assert {name for name in view.objects() if "/op-" in name} == {
        "data/000000000001/op-2-0-seen",
        "data/000000000002/op-2-1-seen",
    }
    record = changed(draft(view), lists=(kept(3, 2, 0),))
    assert "data/000000000003/op-2-0-seen" in record_objects(record)


def test_records_without_lists_have_the_bytes_that_they_always_had() -> None:
    def text(record: CommitRecord) -> bytes:
        return seal("commit", record)

    assert b'"lists"' not in text(draft(EMPTY))
    assert b'"inherited"' not in text(changed(draft(EMPTY), lists=(kept(1, 1, 0),)))
    assert b'"lists"' not in seal("manifest", to_manifest(following(EMPTY)))
