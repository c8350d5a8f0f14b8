"""The lists of operators without keys, as the next epoch finds them.

They run ahead of the commits as lines do: an epoch's chosen results take their place at once. When a commit
fails, the last committed view gives the lists again.
Always true: lists whose number of shards or schema is not the stored one are written whole, all shards of an
operator at once, by the first epoch that runs with them; so a view never mixes two distributions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.checkpoint.store.records import Extent, ListFile, OperatorSchema, StateSchema
from holdfast.graph.job_graph import BroadcastNode, UnkeyedNode
from holdfast.runtime.epoch.payload_bundle import Bundle
from holdfast.runtime.epoch.program import Program
from holdfast.state.cells.declarations import ListState, declared_states
from holdfast.state.cells.redistribution import Redistribute, ShardList, redistributed
from holdfast.state.encoding.layout import StateField, StateKind
from holdfast.state.encoding.types import parse_type
from holdfast.storage.contract import Storage
from holdfast.tasks.held_lists import packed, unpacked
from holdfast.tasks.messages import HeldList, Payload, TaskResult

ShardLists = dict[str, HeldList]
"""State name -> its list. One that is not there is empty."""


@dataclass(frozen=True)
class OperatorLists:
    """All shards of one operator."""

    shards: tuple[ShardLists, ...]
    stored: bool = True
    """False: no commit names lists of this number of shards and these states yet."""


Lists = dict[str, OperatorLists]
"""Operator uid -> its lists."""


@dataclass
class TakenLists:
    """What one epoch did to lists: the files that its commit names, and the lists as they are afterwards."""

    files: list[ListFile] = field(default_factory=list)
    after: Lists = field(default_factory=dict)


def shards_of(node: UnkeyedNode, parallelism: int) -> int:
    """How many shards an operator without keys has."""
    return 1 if isinstance(node, BroadcastNode) else parallelism


def lists_of(
    view: CheckpointView,
    schemas: Sequence[OperatorSchema],
    program: Program,
    shards: int,
    storage: Storage,
    saves_state: bool,
) -> Lists:
    """The lists as the committed view has them, redistributed where it has them for other shards.

    `schemas`: those in force from now on. Where state is not saved everything begins empty.
    """
    before, now = ({schema.uid: schema for schema in each} for each in (view.operators, schemas))
    lists: Lists = {}
    for uid, node in program.unkeyed.items():
        files, own = view.lists.get(uid, ()), shards_of(node, shards)
        if not saves_state or not files:
            lists[uid] = OperatorLists(({},) * own)
        elif files[0].shards == own and before[uid] == now[uid]:
            lists[uid] = OperatorLists(tuple(_of_shard(files, shard) for shard in range(own)))
        else:
            lists[uid] = _rebuilt(files, before[uid], now[uid], _modes(node.function), own, storage)
    return lists


def take_lists(
    taken: TakenLists, uid: str, results: Sequence[TaskResult], lists: Lists, bundle: Bundle | None
) -> None:
    """Take the lists of chosen results. `bundle`: where they are stored; None where state is not saved."""
    held = lists[uid]
    changed: dict[int, ShardLists] = {result.shard: result.lists for result in results if result.lists}
    after = [{**each, **changed.get(shard, {})} for shard, each in enumerate(held.shards)]
    if bundle is None:
        taken.after[uid] = OperatorLists(tuple(after))
        return
    placed: dict[str, Extent] = {}
    for shard, each in enumerate(after):
        for state in sorted(changed.get(shard, {}) if held.stored else each):
            payload = each[state].payload
            extent = placed.get(payload.checksum) or bundle.place(payload)
            placed[payload.checksum] = extent
            each[state] = _in_storage(extent, each[state].items, each[state].inherited)
            taken.files.append(
                ListFile(
                    operator=uid,
                    shards=len(after),
                    shard=shard,
                    state=state,
                    extent=extent,
                    items=each[state].items,
                    inherited=each[state].inherited,
                )
            )
    taken.after[uid] = OperatorLists(tuple(after))


def broadcast_lists(held: OperatorLists, results: Sequence[TaskResult]) -> ShardLists:
    """The broadcast states of an operator as the chosen result left them, for the tasks of the same epoch.

    Readable before the epoch's bundle is written: what has changed is in the result, or an object of its own.
    """
    (before,) = held.shards
    return {**before, **{name: each for result in results for name, each in result.lists.items()}}


def _of_shard(files: Sequence[ListFile], shard: int) -> ShardLists:
    return {
        file.state: _in_storage(file.extent, file.items, file.inherited)
        for file in files
        if file.shard == shard
    }


def _in_storage(extent: Extent, items: int, inherited: int) -> HeldList:
    payload = Payload(checksum=extent.checksum, length=extent.length, extent=extent)
    return HeldList(payload, items, inherited)


def _modes(function: object) -> dict[str, Redistribute]:
    declared = declared_states(type(function)).items()
    return {name: state.redistribute or "split" for name, state in declared if isinstance(state, ListState)}


def _rebuilt(
    files: Sequence[ListFile],
    before: OperatorSchema,
    now: OperatorSchema,
    modes: dict[str, Redistribute],
    shards: int,
    storage: Storage,
) -> OperatorLists:
    """Every list of every shard, empty ones too, made of what is stored."""
    fresh: list[ShardLists] = [{} for _ in range(shards)]
    names = {state.id: state.name for state in before.states}
    for state in now.states:
        target = _field(state)
        stored = [ShardList()] * files[0].shards
        for file in files:
            if file.state == names.get(state.id):
                held = _in_storage(file.extent, file.items, file.inherited)
                stored[file.shard] = unpacked(storage, target, held)
        if files[0].shards != shards:
            stored = redistributed(stored, shards, modes.get(state.name, "split"))
        for shard, each in enumerate(stored):
            fresh[shard][state.name] = packed(now.uid, target, each)
    return OperatorLists(tuple(fresh), stored=False)


def _field(state: StateSchema) -> StateField:
    return StateField(state.id, state.name, StateKind(state.kind), parse_type(state.type))
