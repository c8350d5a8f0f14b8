"""An operator's list of one shard: as the user's code touches it, and as bytes.

Stored as one Arrow IPC stream with a column `item`; who wrote it stands in the schema's metadata.
Always true: what is read has the declared type, converted from the stored one only where no value is lost.
Never here: which shard gets which items (see redistribution), and checksums (kept where the bytes are named).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from holdfast.errors import CorruptionError, RestoreError
from holdfast.state.cells.redistribution import ShardList
from holdfast.state.cells.value_cells import ItemsCell, state_settler
from holdfast.state.encoding.arrow_values import column_of, copied, is_immutable, objects_of, unchanged
from holdfast.state.encoding.layout import StateField
from holdfast.state.encoding.types import type_ddl
from holdfast.state.files.delta import Changes
from holdfast.state.files.schema_conversion import converted

LIST_FORMAT = 1
_FORMAT_KEY = b"holdfast.format"
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


class OperatorListCell(ItemsCell):
    """A ListState of one shard. Items are checked when they are added.

    Items that could change in place are given out as copies, the same ones until the slice ends: what the
    user's code changes in them counts as if the whole list were replaced.
    """

    __slots__ = ("_field", "_given_out", "_immutable", "_inherited", "_items", "_settle", "_start")

    def __init__(self, field: StateField, held: ShardList) -> None:
        self._field = field
        self._settle, self._immutable = state_settler(field), is_immutable(field.type)
        self._given_out: list[Any] = []
        self._items = list(held.items)
        self._inherited = held.inherited
        self._start = (self._items, len(self._items))

    def __repr__(self) -> str:
        return f"state {self._field.name!r}"

    def append(self, item: Any) -> None:
        """Add one item at the end."""
        self._items.append(self._settle(item))

    def clear(self) -> None:
        """Forget all items of the shard."""
        self._items = []
        self._given_out = []
        self._inherited = 0

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Any]:
        if self._immutable:
            yield from list(self._items)
            return
        self._given_out += copied(self._items[len(self._given_out) :])
        yield from list(self._given_out)

    def _take_back(self) -> None:
        """Make what became of the items that were given out the shard's items."""
        if all(map(unchanged, self._items, self._given_out)):
            return
        changed = [self._settle(item) for item in self._given_out]
        self._items = [*changed, *self._items[len(changed) :]]
        self._inherited = 0

    @property
    def changed(self) -> bool:
        """Whether the list is no longer what it was."""
        self._take_back()
        items, length = self._start
        return self._items is not items or len(items) != length

    def held(self) -> ShardList:
        """The list as it is now."""
        self._take_back()
        return ShardList(self._items, self._inherited)

    def load(self, key: int) -> None:
        """A shard has one list."""

    def keep(self, key: int) -> None:
        """A shard has one list."""

    def mark(self) -> Any:
        self._take_back()
        # Nothing shortens the list, it is only exchanged: its length is enough to go back.
        return self._items, len(self._items), self._inherited

    def undo(self, mark: Any) -> None:
        self._items, length, self._inherited = mark
        del self._items[length:]
        self._given_out = []

    def check(self) -> None:
        """Items were checked when they were added, but for those that were changed in place."""
        self._take_back()

    def put_into(self, changes: Changes) -> None:
        raise AssertionError("lists of an operator are stored whole, not as changes")


def pack_list(operator: str, field: StateField, items: Iterable[Any]) -> bytes:
    """A list as bytes."""
    metadata = {
        _FORMAT_KEY: str(LIST_FORMAT),
        b"holdfast.operator": operator,
        b"holdfast.state": field.name,
        b"holdfast.type": type_ddl(field.type),
    }
    schema = pa.schema([pa.field("item", field.type)], metadata=metadata)
    buffer = pa.BufferOutputStream()
    with pa.ipc.new_stream(buffer, schema, options=_OPTIONS) as writer:
        writer.write_table(pa.Table.from_arrays([column_of(list(items), field.type)], schema=schema))
    packed: bytes = buffer.getvalue().to_pybytes()
    return packed


def unpack_list(data: bytes, field: StateField, name: str) -> list[Any]:
    """The items of a list that is stored as `name`."""
    try:
        table = pa.ipc.open_stream(data).read_all()
    except pa.ArrowInvalid as cause:
        raise CorruptionError(
            f"the list in {name} cannot be read ({cause}); restore it from a copy"
        ) from cause
    written = int((table.schema.metadata or {}).get(_FORMAT_KEY, b"0"))
    if not 1 <= written <= LIST_FORMAT:
        raise RestoreError(
            f"the list in {name} has format {written}, this Holdfast knows {LIST_FORMAT}; upgrade Holdfast"
        )
    column = table.column("item").combine_chunks()
    try:
        return objects_of(converted(column, field.type))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as cause:
        raise RestoreError(
            f"state {field.name!r} is declared {type_ddl(field.type)}, the list in {name} holds "
            f"{type_ddl(column.type)} that does not fit; declare it as it was"
        ) from cause
