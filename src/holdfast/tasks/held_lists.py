"""Lists of operators without keys on their way to and from tasks; broadcast states are such lists."""

from __future__ import annotations

from typing import Any

from holdfast.state.cells.redistribution import ShardList
from holdfast.state.cells.shard_list import pack_list, unpack_list
from holdfast.state.encoding.layout import StateField
from holdfast.storage.checksums import checksum, read_extent
from holdfast.storage.contract import Storage
from holdfast.tasks.messages import BroadcastLists, HeldList, Payload

_recent: dict[tuple[str, StateField], tuple[Payload, dict[Any, Any]]] = {}
"""The broadcast states that this process read last: as long as one does not change it is read once."""


def unpacked(storage: Storage, field: StateField, held: HeldList) -> ShardList:
    """A list as objects."""
    extent = held.payload.extent
    if extent is not None:
        items = unpack_list(read_extent(storage, extent), field, extent.object)
    else:
        assert held.payload.inline is not None
        items = unpack_list(held.payload.inline, field, "the result of a task")
    return ShardList(items, held.inherited)


def packed(operator: str, field: StateField, held: ShardList) -> HeldList:
    """A list as bytes that travel with the value."""
    data = pack_list(operator, field, held.items)
    payload = Payload(checksum=checksum(data), length=len(data), inline=data)
    return HeldList(payload, len(held.items), held.inherited)


def broadcast_entries(storage: Storage, broadcast: BroadcastLists) -> dict[str, dict[Any, Any]]:
    """The broadcast states by name, as dicts that are not to be changed."""
    return {field.name: _entries(storage, broadcast, field) for field in broadcast.layout.fields}


def _entries(storage: Storage, broadcast: BroadcastLists, field: StateField) -> dict[Any, Any]:
    held = broadcast.lists.get(field.name)
    if held is None:
        return {}
    place = (broadcast.layout.operator, field)
    payload, entries = _recent.get(place, (None, {}))
    # The same bytes, whether they are in a task's result or in storage.
    if payload is None or (payload.checksum, payload.length) != (held.payload.checksum, held.payload.length):
        entries = dict(unpacked(storage, field, held).items)
        _recent[place] = held.payload, entries
    return entries
