"""One key's state as the bytes that are saved (docs/formats/saved-key.md has every byte).

    "HFK1" | term (8) | epoch (8) | incarnation (16) | generation (2) | events (8) | form (1) | XXH3-128 (16)
    | body

Always true: any byte that differs from what was written is noticed; of two saves of a key the later one has
the greater first 20 bytes; state is encoded by its declared types, or by the user's own `serialize_state`.
Never here: pickle, where saves are kept, or when they are made.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import xxhash

from holdfast.errors import CorruptionError, RestoreError
from holdfast.state.contract import ShardState
from holdfast.state.encoding.arrow_values import column_of, objects_of
from holdfast.state.encoding.coercion import Misfit
from holdfast.state.encoding.keys import PREFIX_BYTES
from holdfast.state.encoding.layout import LONG_KEY_SUFFIX, StateKind, StateLayout, is_shortened, state_keys
from holdfast.state.files.delta import to_entries
from holdfast.state.files.key_books import BOOK_ID, STATES_MAX
from holdfast.state.files.rows import changes_of, column_names, row_schema, rows_of
from holdfast.state.files.schema_conversion import Lineage
from holdfast.storage.key_saves.contract import ORDER_BYTES, StateId

Item = tuple[bytes, bytes]
"""An entry: its key and its value."""

MAGIC = b"HFK1"
ENTRIES, CUSTOM = 0, 1
"""Forms of the body: entries by declared type; what the user's `serialize_state` gave."""

_HEAD = struct.Struct(">4sQQ16sHQB")
_SUM_BYTES = 16
_BODY_START = _HEAD.size + _SUM_BYTES
_decode_body = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]]).decode

assert struct.calcsize(">4sQQ") == ORDER_BYTES


@dataclass(frozen=True, slots=True)
class SavedKey:
    """What a save says of itself, and its body."""

    term: int
    epoch: int
    incarnation: bytes
    generation: int
    events: int
    form: int
    body: bytes

    def pack(self) -> bytes:
        head = _HEAD.pack(
            MAGIC, self.term, self.epoch, self.incarnation, self.generation, self.events, self.form
        )
        return head + xxhash.xxh3_128_digest(head + self.body) + self.body


def unpack(data: bytes, id: StateId) -> SavedKey:
    """A save as it was written; CorruptionError where it is not. `id` is for errors."""
    if len(data) < _BODY_START or data[: len(MAGIC)] != MAGIC:
        raise CorruptionError(f"the save of {id} is no save of a key; restore it from a copy, or remove it")
    head, body = data[: _HEAD.size], data[_BODY_START:]
    if xxhash.xxh3_128_digest(head + body) != data[_HEAD.size : _BODY_START]:
        raise CorruptionError(f"the save of {id} is damaged; restore it from a copy, or remove it")
    _, term, epoch, incarnation, generation, events, form = _HEAD.unpack(head)
    return SavedKey(term, epoch, incarnation, generation, events, form, body)


def state_id(layout: StateLayout, base: bytes) -> StateId:
    """Under what a key is saved: its bytes without the key group, so that rescaling changes nothing."""
    return StateId(layout.operator, base[PREFIX_BYTES:])


def read_keys(layout: StateLayout, bases: Sequence[bytes], state: ShardState) -> list[list[Item]]:
    """All entries of some keys but their books, in key order."""
    found: list[dict[bytes, bytes]] = [{} for _ in bases]
    for field in layout.fields:
        if field.is_map:
            continue
        keys = state_keys(field, bases)
        for place, (key, value) in enumerate(zip(keys, state.get_many(keys), strict=True)):
            if value is not None:
                found[place][key] = value
    scanned = [field for field in layout.fields if field.kind is not StateKind.VALUE]
    for place, base in enumerate(bases):
        for field in scanned:
            prefix = base + field.suffix
            if field.is_map or prefix in found[place]:
                found[place].update(state.scan(prefix))
    long = [(place, base + LONG_KEY_SUFFIX) for place, base in enumerate(bases) if is_shortened(base)]
    for (place, key), value in zip(long, state.get_many([key for _, key in long]), strict=True):
        if value is not None:
            found[place][key] = value
    return [sorted(entries.items()) for entries in found]


def pack_entries(base: bytes, entries: Sequence[Item]) -> bytes:
    """Entries of one key as a body."""
    return msgspec.msgpack.encode([(key[len(base) :], value) for key, value in entries])


def unpack_entries(lineage: Lineage, saved: SavedKey, base: bytes, id: StateId) -> list[Item]:
    """The entries of a save, as those of the layout in force."""
    try:
        entries = [(base + tail, value) for tail, value in _decode_body(saved.body)]
    except msgspec.MsgspecError as cause:
        raise CorruptionError(f"the save of {id} cannot be read: {cause}") from cause
    convert = lineage.converter(saved.generation, f"the save of {id}")
    if convert is None:
        return entries
    return [(key, value) for key, value in convert(list(entries)) if value is not None]


def as_objects(layout: StateLayout, entries: Sequence[Item]) -> dict[str, Any]:
    """One key's states as Python objects by name, None where nothing is stored: what the user's
    `serialize_state` gets."""
    table = rows_of(layout, entries)
    names, _ = column_names(layout)
    if not table.num_rows:
        return {field.name: None for field in layout.fields}
    columns = [table.column(name).combine_chunks() for name in names]
    return {
        field.name: _plain(objects_of(column)[0], field.kind)
        for field, column in zip(layout.fields, columns, strict=True)
    }


def _plain(value: Any, kind: StateKind) -> Any:
    return dict(value) if kind is StateKind.MAP and value is not None else value


def from_objects(layout: StateLayout, base: bytes, states: Mapping[str, Any], whole_key: bytes) -> list[Item]:
    """The entries of one key whose states the user's `restore_state` gave."""
    unknown = [name for name in states if name not in layout.by_name]
    if unknown:
        raise RestoreError(
            f"restore_state of operator {layout.operator!r} gave states {unknown}, which are not declared; "
            f"declared are {list(layout.by_name)}"
        )
    names, group = column_names(layout)
    schema = row_schema(layout)
    key = layout.keys.decode_key_bytes([whole_key])
    columns = [
        *key,
        *(
            _column(layout, field.name, states.get(field.name), schema.field(name).type)
            for name, field in zip(names, layout.fields, strict=True)
        ),
        pa.array([int.from_bytes(base[:2], "big")], schema.field(group).type),
    ]
    changes = changes_of(layout, pa.Table.from_arrays(columns, schema=schema))
    return [(key, value) for key, value in to_entries(layout, changes) if value is not None]


def _column(layout: StateLayout, state: str, value: Any, type: pa.DataType) -> pa.Array:
    try:
        return column_of([value], type)
    except Misfit as misfit:
        what = f"state {state!r} of operator {layout.operator!r}, which restore_state gave,"
        raise RestoreError(misfit.text(what, type)) from misfit


def check_layout(layout: StateLayout) -> None:
    """The book's entry must not meet a state's."""
    assert all(field.id <= STATES_MAX for field in layout.fields), f"state id {BOOK_ID} is the book's"
