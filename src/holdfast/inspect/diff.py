"""What differs between two stored states: two epochs of a checkpoint, two savepoints, or one of each.

Always true: both are read in key order beside each other, so memory does not grow with the state. Key groups
whose files are the same in both are not read at all; where only deltas differ, and hold few keys, only those
keys are. Values are compared as stored, where both have the same schema and nothing expires; otherwise as
values, of the states that both have. What has expired by the time of its commit is not there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from holdfast.checkpoint.chain.shard_lines import line_of, ranges_of
from holdfast.errors import RestoreError
from holdfast.ids import KeyGroup, KeyGroupRange
from holdfast.inspect.point_query import KeyLookup
from holdfast.inspect.stored_state import StoredState, lists_of_operator, live_entries
from holdfast.state.encoding.layout import LONG_KEY_SUFFIX, StateField, StateLayout
from holdfast.state.encoding.types import type_ddl
from holdfast.state.files.delta import open_delta
from holdfast.state.files.rows import Item, column_names, rows_of
from holdfast.storage.checksums import read_extent

KEYS_MAX = 50_000
"""Up to this many keys are looked up one by one; for more, reading everything is quicker."""

Kind = Literal["added", "removed", "changed"]
KeyEntries = tuple[bytes, Sequence[Item]]
"""A key's base and all its entries."""


@dataclass(frozen=True)
class KeyDifference:
    """One key that differs. `before` and `after`: state name -> value; None: the key has no state there.

    Of an operator without keys: one item of a list, `key` says of which.
    """

    kind: Kind
    key: dict[str, Any]
    before: dict[str, Any] | None
    after: dict[str, Any] | None


@dataclass
class OperatorDifference:
    """How many keys of an operator differ, and the first of them."""

    uid: str
    added: int = 0
    removed: int = 0
    changed: int = 0
    examples: list[KeyDifference] = field(default_factory=list)
    schema: tuple[str, ...] = ()
    """What is different in the operator's schema, a line each."""

    def count(self, kind: Kind, keys: int = 1) -> None:
        setattr(self, kind, getattr(self, kind) + keys)

    @property
    def differs(self) -> bool:
        return bool(self.added or self.removed or self.changed or self.schema)


def differences(a: StoredState, b: StoredState, examples: int = 10) -> list[OperatorDifference]:
    """What `b` has otherwise than `a`, operator by operator, equal ones too.

    RestoreError: they have different numbers of key groups.
    """
    if a.key_groups != b.key_groups:
        raise RestoreError(
            f"{a} has {a.key_groups} key groups, {b} has {b.key_groups}; bring one to the number of the "
            "other with `holdfast savepoints convert`, then compare"
        )
    keyed = dict.fromkeys([*a.lineages, *b.lineages])
    others = dict.fromkeys([*a.unkeyed_operators, *b.unkeyed_operators])
    return [
        *(_of_operator(a, b, uid, examples) for uid in keyed),
        *(_of_lists(a, b, uid, examples) for uid in others if uid not in keyed),
    ]


def _of_operator(a: StoredState, b: StoredState, uid: str, examples: int) -> OperatorDifference:
    found = OperatorDifference(uid, schema=_schema_changes(a, b, uid))
    layouts = [stored.lineages[uid].layout if uid in stored.lineages else None for stored in (a, b)]
    before_layout, after_layout = layouts[0] or layouts[1], layouts[1] or layouts[0]
    assert before_layout is not None
    assert after_layout is not None
    if before_layout.key != after_layout.key:
        return found
    for groups in _unlike(a, b, uid):
        for before, after in _pairs(a, b, uid, groups):
            kind = _kind(before_layout, after_layout, before, after)
            if kind is None:
                continue
            found.count(kind)
            if len(found.examples) < examples:
                found.examples.append(
                    KeyDifference(
                        kind,
                        _key(before_layout, before) if before else _key(after_layout, after or []),
                        _values(before_layout, before),
                        _values(after_layout, after),
                    )
                )
    return found


def _of_lists(a: StoredState, b: StoredState, uid: str, examples: int) -> OperatorDifference:
    """Of an operator without keys: the items that only one side has, whichever shard they are in."""
    found = OperatorDifference(uid)
    before, after = _items(a, uid), _items(b, uid)
    only: tuple[tuple[Kind, Counter[tuple[str, str]]], ...]
    only = (("removed", before - after), ("added", after - before))
    for kind, items in only:
        for (state, item), count in items.items():
            found.count(kind, count)
            if len(found.examples) < examples:
                shown = {"item": item}
                sides = (None, shown) if kind == "added" else (shown, None)
                found.examples.append(KeyDifference(kind, {"state": state}, *sides))
    return found


def _items(stored: StoredState, uid: str) -> Counter[tuple[str, str]]:
    return Counter((held.state, repr(item)) for held in lists_of_operator(stored, uid) for item in held.items)


def _schema_changes(a: StoredState, b: StoredState, uid: str) -> tuple[str, ...]:
    if uid not in a.lineages or uid not in b.lineages:
        where = b if uid in b.lineages else a
        return (f"operator {uid!r} is only in {where}",)
    layouts = [stored.lineages[uid].layout for stored in (a, b)]
    key, other_key = (layout.schema_rows()[0] for layout in layouts)
    lines = [f"the key is {_columns(key)} and {_columns(other_key)}"] if key != other_key else []
    by_name, others_by_name = (layout.by_name for layout in layouts)
    for name in dict.fromkeys([*by_name, *others_by_name]):
        old, new = _shown(by_name.get(name)), _shown(others_by_name.get(name))
        if old != new:
            lines.append(f"state {name!r} is {old} and {new}")
    return tuple(lines)


def _columns(key: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(f"{name} {ddl}" for name, ddl in key)


def _shown(state: StateField | None) -> str:
    return "absent" if state is None else f"{state.kind} of {type_ddl(state.type)}{_ttl(state)}"


def _ttl(state: StateField) -> str:
    return "" if state.ttl is None else f", {state.ttl}"


def _unlike(a: StoredState, b: StoredState, uid: str) -> list[KeyGroupRange]:
    """The key groups, in ranges, that do not come from the very same files."""
    unlike: list[int] = []
    for group in range(a.key_groups):
        alone = KeyGroupRange(KeyGroup(group), KeyGroup(group + 1))
        if a.storage.url != b.storage.url or _files(a, uid, alone) != _files(b, uid, alone):
            unlike.append(group)
    return [KeyGroupRange(KeyGroup(first), KeyGroup(end)) for first, end in ranges_of(unlike)]


def _files(stored: StoredState, uid: str, groups: KeyGroupRange) -> Any:
    line = line_of(stored.view, uid, groups)
    schema = stored.lineages[uid].fingerprint if uid in stored.lineages else ""
    at = stored.instants(uid) if _expires(stored, uid) else None
    return schema, at, [file.object for file in line.snapshots], [delta.extent for delta in line.deltas]


def _expires(stored: StoredState, uid: str) -> bool:
    """Whether keys may differ that no file tells apart: time has passed."""
    return uid in stored.lineages and bool(stored.lineages[uid].layout.expiring)


def _pairs(
    a: StoredState, b: StoredState, uid: str, groups: KeyGroupRange
) -> Iterator[tuple[Sequence[Item] | None, Sequence[Item] | None]]:
    """The keys that may differ, with the entries that they have on each side."""
    touched = _touched(a, b, uid, groups)
    if touched is None:
        yield from _beside(_keys(a, uid, groups), _keys(b, uid, groups))
        return
    lineage, lookup = a.lineages[uid], KeyLookup()
    try:
        for base in sorted(touched):
            sides = [sorted(lookup.entries(stored, lineage, base).items()) for stored in (a, b)]
            before, after = (side if _has_state(base, side) else None for side in sides)
            if before or after:
                yield before, after
    finally:
        lookup.close()


def _touched(a: StoredState, b: StoredState, uid: str, groups: KeyGroupRange) -> set[bytes] | None:
    """The keys in the deltas that only one side has; None: more than these may differ, or they are many."""
    if a.storage.url != b.storage.url or uid not in a.lineages or uid not in b.lineages:
        return None
    if a.lineages[uid].fingerprint != b.lineages[uid].fingerprint or _expires(a, uid):
        return None
    lines = [line_of(stored.view, uid, groups) for stored in (a, b)]
    if lines[0].snapshots != lines[1].snapshots:
        return None
    sides = [{delta.extent: delta for delta in line.deltas} for line in lines]
    only = [
        delta
        for extent, delta in (sides[0] | sides[1]).items()
        if (extent in sides[0]) != (extent in sides[1])
    ]
    if sum(delta.entries for delta in only) > KEYS_MAX:
        return None
    bases: set[bytes] = set()
    for file in only:
        delta = open_delta(read_extent(a.storage, file.extent), file.extent.object)
        layout = a.lineages[uid].at(delta.generation, f"delta {delta.name}")
        bases.update(delta.part(*delta.rows(groups)).bases(layout))
    return bases if len(bases) <= KEYS_MAX else None


def _keys(stored: StoredState, uid: str, groups: KeyGroupRange) -> Iterator[KeyEntries]:
    if uid not in stored.lineages:
        return
    length = stored.lineages[uid].layout.keys.base_length
    for run in live_entries(stored, uid, groups):
        base, held = b"", list[Item]()
        for item in run:
            if not held or not item[0].startswith(base):
                if _has_state(base, held):
                    yield base, held
                base, held = item[0][: length(item[0])], []
            held.append(item)
        if _has_state(base, held):
            yield base, held


def _has_state(base: bytes, entries: list[Item]) -> bool:
    """Whether there is more than the real key behind a shortened one, which is not state."""
    return len(entries) > 1 or any(key != base + LONG_KEY_SUFFIX for key, _ in entries)


def _beside(
    a: Iterator[KeyEntries], b: Iterator[KeyEntries]
) -> Iterator[tuple[Sequence[Item] | None, Sequence[Item] | None]]:
    left, right = next(a, None), next(b, None)
    while left is not None or right is not None:
        if right is None or (left is not None and left[0] < right[0]):
            assert left is not None
            yield left[1], None
            left = next(a, None)
        elif left is None or right[0] < left[0]:
            yield None, right[1]
            right = next(b, None)
        else:
            yield left[1], right[1]
            left, right = next(a, None), next(b, None)


def _kind(
    before_layout: StateLayout,
    after_layout: StateLayout,
    before: Sequence[Item] | None,
    after: Sequence[Item] | None,
) -> Kind | None:
    if before is None:
        return "added"
    if after is None:
        return "removed"
    if before_layout.schema_rows() == after_layout.schema_rows() and not before_layout.expiring:
        return None if before == after else "changed"
    old, new = _values(before_layout, before) or {}, _values(after_layout, after) or {}
    return "changed" if any(old[name] != new[name] for name in old.keys() & new.keys()) else None


def _values(layout: StateLayout, entries: Sequence[Item] | None) -> dict[str, Any] | None:
    if entries is None:
        return None
    row = rows_of(layout, entries)
    names, _ = column_names(layout)
    return {state.name: row.column(name)[0].as_py() for state, name in zip(layout.fields, names, strict=True)}


def _key(layout: StateLayout, entries: Sequence[Item]) -> dict[str, Any]:
    row = rows_of(layout, entries)
    return {name: row.column(name)[0].as_py() for name in layout.key.names}
