"""What one epoch changed in one shard: columns of puts and deletes, and the entries they come to.

Always true: a state of a key, a list item and a map entry are each changed at most once (the operator hands
over the outcome, not the history), so the order of changes means nothing; `to_entries` is a function of the
changes alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.state.encoding.expiry_index import expiry_keys
from holdfast.state.encoding.layout import (
    LONG_KEY_SUFFIX,
    StateField,
    StateKind,
    StateLayout,
    encode_headers,
    is_shortened,
    item_keys,
    map_tails,
    state_keys,
    time_keys,
)
from holdfast.state.encoding.ttl import UNKNOWN_US, Times, with_times

Rows: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]
Entry: TypeAlias = tuple[bytes, bytes | None]
"""An entry key and its value; None: the entry is deleted."""


@dataclass
class ValueChange:
    """VALUE states (or next sequence numbers of lists) of some keys: `rows` are indices into the changed
    keys.

    Where `deleted` (None: nowhere), the state is removed and `values` holds anything of the type, best null.
    """

    rows: Rows
    values: pa.Array
    deleted: Flags | None = None
    times: Times | None = None
    """Of a state with a ttl (see encoding.ttl): those of the values; where deleted, those of what was there,
    if the index has nothing else in its place. None: not known."""


@dataclass
class EntryChange:
    """List items (`entry` is the sequence number, int64) or map entries (`entry` is the map key)."""

    rows: Rows
    entry: pa.Array
    values: pa.Array
    deleted: Flags | None = None
    times: Times | None = None
    """As of a ValueChange."""


@dataclass
class Changes:
    """One row per touched key, in any order, each key once; then what changed, by state name."""

    keys: Sequence[pa.Array]
    groups: npt.NDArray[np.uint16]
    bases: list[bytes]
    values: dict[str, ValueChange] = field(default_factory=dict)
    entries: dict[str, EntryChange] = field(default_factory=dict)
    headers: dict[str, ValueChange] = field(default_factory=dict)
    """Lists: the next sequence number (int64) after this epoch; deleted: the list is gone."""
    _ranks: Rows | None = field(default=None, repr=False, compare=False)

    @property
    def ranks(self) -> Rows:
        """Where each key stands among the changed keys when sorted by base."""
        if self._ranks is None:
            order = ordered(self.bases)
            self._ranks = np.empty(len(order), np.int64)
            self._ranks[order] = np.arange(len(order))
        return self._ranks


@dataclass
class Part:
    """All changes of one kind to one state, sorted by entry key: parallel columns."""

    field: StateField
    op: str
    rows: Rows
    ranks: Rows
    within: Rows
    """Orders the changes to one key."""
    entry: pa.Array | None
    values: pa.Array
    deleted: Flags | None
    times: Times | None = None
    """Of a state with a ttl: always there, but for list headers."""

    def __len__(self) -> int:
        return len(self.rows)


_WORD = 8
PUT, DELETE, HEADER, DROP = "put", "delete", "header", "drop"


def ordered(keys: Sequence[bytes]) -> Rows:
    """The order that sorts some byte strings."""
    widths = set(map(len, keys))
    if len(widths) == 1 and (width := widths.pop()) >= _WORD:
        return _ordered_cells(np.frombuffer(b"".join(keys), np.uint8).reshape(len(keys), width))
    order: Rows = pc.sort_indices(pa.array(keys, pa.binary())).to_numpy().astype(np.int64)
    return order


def _ordered_cells(cells: npt.NDArray[np.uint8]) -> Rows:
    """Radix sort: the last eight bytes at once, then byte by byte to the front, skipping those all alike."""
    body = cells.shape[1] - _WORD
    order: Rows = np.argsort(np.ascontiguousarray(cells[:, body:]).view(">u8").ravel().astype(np.uint64))
    for place in range(body - 1, -1, -1):
        column = cells[:, place]
        if column.min() != column.max():
            order = order[np.argsort(column[order], kind="stable")]
    return order


def parts_of(layout: StateLayout, changes: Changes) -> list[Part]:
    """The changes as parts, in the order of state ids."""
    return [
        part for state in sorted(layout.fields, key=lambda f: f.id) for part in _state_parts(state, changes)
    ]


def _state_parts(state: StateField, changes: Changes) -> Iterator[Part]:
    whole = (changes.headers if state.kind is StateKind.LIST else changes.values).get(state.name)
    if whole is not None and len(whole.rows):
        op = HEADER if state.kind is StateKind.LIST else PUT
        yield _sorted_part(state, op, changes, whole, None, np.zeros(len(whole.rows), np.int64))
    inner = changes.entries.get(state.name)
    if inner is None or not len(inner.rows):
        return
    if state.kind is StateKind.LIST:
        within = np.asarray(inner.entry.cast(pa.int64())) + 1
    else:
        within = np.empty(len(inner.rows), np.int64)
        within[ordered(map_tails(state, inner.entry)[0])] = np.arange(len(inner.rows))
    yield _sorted_part(state, PUT, changes, inner, inner.entry, within)


def _sorted_part(
    state: StateField,
    op: str,
    changes: Changes,
    change: ValueChange | EntryChange,
    entry: pa.Array | None,
    within: Rows,
) -> Part:
    ranks = changes.ranks[change.rows]
    order = np.argsort(ranks) if entry is None else np.lexsort((within, ranks))
    take = pa.array(order)
    return Part(
        field=state,
        op=op,
        rows=change.rows[order],
        ranks=ranks[order],
        within=within[order],
        entry=None if entry is None else entry.take(take),
        values=change.values.take(take),
        deleted=change.deleted[order] if change.deleted is not None and change.deleted.any() else None,
        times=None if state.ttl is None or op == HEADER else _times(change)[order],
    )


def _times(change: ValueChange | EntryChange) -> Times:
    return np.full(len(change.rows), UNKNOWN_US) if change.times is None else change.times


def merge_order(parts: Sequence[Part]) -> Rows | None:
    """The order that sorts the rows of all parts, end to end, by entry key; None: they are sorted."""
    if len(parts) < 2:
        return None
    ids = [np.full(len(part), part.field.id) for part in parts]
    ranks, within = [part.ranks for part in parts], [part.within for part in parts]
    return np.lexsort((np.concatenate(within), np.concatenate(ids), np.concatenate(ranks)))


def to_entries(layout: StateLayout, changes: Changes) -> list[Entry]:
    """The changes as entries of the working state, and as what these mean for its time index; sorted by
    key."""
    parts = parts_of(layout, changes)
    keys: list[bytes] = []
    values: list[bytes | None] = []
    besides: list[Entry] = []
    for part in parts:
        part_keys, part_values = _part_entries(part, changes.bases)
        keys += part_keys
        values += part_values
        if part.field.kind is StateKind.TIMED:
            besides += _index_entries(part, changes.bases, part_keys, part_values)
        if part.times is not None:
            besides += _expiry_entries(part, changes.bases, part_keys, part_values)
    order = merge_order(parts)
    entries = list(zip(keys, values, strict=True))
    if order is not None:
        entries = list(map(entries.__getitem__, order.tolist()))
    besides += _long_key_entries(layout, changes, parts)
    return sorted(entries + besides, key=itemgetter(0)) if besides else entries


def _index_entries(
    part: Part, bases: list[bytes], keys: list[bytes], values: list[bytes | None]
) -> Iterator[Entry]:
    """What entries of a TIMED state mean for the time index."""
    own = list(map(bases.__getitem__, part.rows.tolist()))
    places = time_keys(part.field.suffix, own, keys)
    return zip(places, (None if value is None else b"" for value in values), strict=True)


def _expiry_entries(
    part: Part, bases: list[bytes], keys: list[bytes], values: list[bytes | None]
) -> Iterator[Entry]:
    """Where the index of what expires has the entries that are written, and no longer those that are deleted
    with their times. Where others were before is not known here: that is dropped when it is met."""
    assert part.times is not None
    rows, known = part.rows.tolist(), part.times != UNKNOWN_US
    changed = [at for at, value in enumerate(values) if value is not None or known[at]]
    own = [bases[rows[at]] for at in changed]
    tails = [keys[at][len(base) + 1 :] for at, base in zip(changed, own, strict=True)]
    places = expiry_keys(part.field, own, part.times[changed], tails)
    found: dict[bytes, bytes | None] = {}
    for place, at in zip(places, changed, strict=True):
        if values[at] is not None or place not in found:
            found[place] = None if values[at] is None else b""
    yield from found.items()


def _part_entries(part: Part, bases: list[bytes]) -> tuple[list[bytes], list[bytes | None]]:
    own = list(map(bases.__getitem__, part.rows.tolist()))
    values: list[bytes | None]
    if part.op == HEADER:
        keys = state_keys(part.field, own)
        values = [*encode_headers(np.asarray(part.values.cast(pa.int64()).fill_null(0)))]
    else:
        values = [*part.field.codec.encode(part.values)]
        if part.entry is None:
            keys = state_keys(part.field, own)
        elif part.field.kind is StateKind.LIST:
            keys = item_keys(part.field, own, np.asarray(part.entry.cast(pa.int64())))
        else:
            tails, heads = map_tails(part.field, part.entry)
            suffix = part.field.suffix
            keys = [base + suffix + tail for base, tail in zip(own, tails, strict=True)]
            values = [head + (value or b"") for head, value in zip(heads, values, strict=True)]
    if part.times is not None:
        values = [*with_times(part.times, [value or b"" for value in values])]
    if part.deleted is not None:
        values = [None if gone else value for value, gone in zip(values, part.deleted.tolist(), strict=True)]
    return keys, values


def _long_key_entries(layout: StateLayout, changes: Changes, parts: Sequence[Part]) -> list[Entry]:
    """The real keys behind shortened bases: kept with every change, removed when the whole key is."""
    if layout.keys.always_short:
        return []
    changed = np.unique(np.concatenate([part.rows for part in parts])) if parts else np.empty(0, np.int64)
    rows = [row for row in changed.tolist() if is_shortened(changes.bases[row])]
    if not rows:
        return []
    real = layout.keys.key_bytes([column.take(pa.array(rows)) for column in changes.keys])
    gone = _emptied(layout, changes)
    return [
        (changes.bases[row] + LONG_KEY_SUFFIX, None if gone[row] else key)
        for row, key in zip(rows, real, strict=True)
    ]


def _emptied(layout: StateLayout, changes: Changes) -> Flags:
    """Which keys surely have no state left: all was deleted here. A map never shows that it is empty."""
    gone = np.ones(len(changes.bases), np.bool_)
    for state in layout.fields:
        deleted = np.zeros(len(gone), np.bool_)
        change = (changes.headers if state.kind is StateKind.LIST else changes.values).get(state.name)
        if not state.is_map and change is not None and change.deleted is not None:
            deleted[change.rows[change.deleted]] = True
        gone &= deleted
    return gone
