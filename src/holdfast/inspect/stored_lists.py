"""The lists of operators without keys, read from storage: of a commit or of a savepoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from holdfast.inspect.stored_state import StoredState
from holdfast.state.cells.shard_list import unpack_list
from holdfast.state.encoding.layout import StateField, StateKind
from holdfast.state.encoding.types import parse_type
from holdfast.storage.checksums import read_extent


@dataclass(frozen=True)
class ShardItems:
    """What one shard holds in one list."""

    state: str
    shard: int
    items: tuple[Any, ...]


def unkeyed_operators(stored: StoredState) -> list[str]:
    """The uids of the operators without keys."""
    return [schema.uid for schema in stored.view.operators if not schema.key]


def lists_of_operator(stored: StoredState, uid: str) -> Iterator[ShardItems]:
    """All lists of an operator, shard by shard. CorruptionError names a damaged file."""
    types = {
        state.name: parse_type(state.type)
        for schema in stored.view.operators
        if schema.uid == uid
        for state in schema.states
    }
    for file in stored.view.lists.get(uid, ()):
        field = StateField(0, file.state, StateKind.LIST, types[file.state])
        data = read_extent(stored.storage, file.extent)
        items = unpack_list(data, field, file.extent.object)
        yield ShardItems(file.state, file.shard, tuple(items))
