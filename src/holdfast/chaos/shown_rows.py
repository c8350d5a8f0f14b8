"""What sinks show, compared with what those of a reference do. Pure.

Epochs are cut elsewhere in every run, so what is compared is what does not follow from that:

    rows                                as a multiset
    an aggregation                      the last row of each key
    windows                             the rows of the newest revision of each key and window; a session
                                        whose newest row says `deleted` is none

Columns that say which epoch a row is of (`revision`), or how far event time was then (`watermark`), are left
out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import astuple, dataclass
from operator import add
from typing import Any

from holdfast.graph.windows import DELETED, REVISION

REASONS_MAX = 5
"""Of each kind of wrong, that many are told: the first ones say what happened."""

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class SinkShape:
    """How a sink's rows can be compared, by what stands before it in the graph."""

    uid: str
    dedupes: bool = True
    """Whether it recognises an epoch that it already shows."""
    key: tuple[str, ...] | None = None
    """Of an aggregation: rows are compared by their last one per key. Of windows: key and window."""
    windows: bool = False
    """Rows have a revision, and the newest counts."""
    once: bool = False
    """Of windows: each is shown once, since neither late rows nor early results show it again."""
    several: bool = False
    """Of windows: there may be any number of rows for one."""
    passing: tuple[str, ...] = ()
    """Columns that follow from how epochs are cut."""
    stateless: bool = False
    """No operator stands before it: each row is made of one row of a source."""


@dataclass(frozen=True, kw_only=True)
class SinkLeft:
    """What a sink was given, and what it shows: epoch -> one list of rows for each time it was shown."""

    shown: dict[int, list[list[Row]]]
    given: frozenset[int] = frozenset()
    """The epochs that it was called with."""
    conflicts: tuple[int, ...] = ()
    """Epochs that it was given again with other rows."""

    def rows(self) -> Iterable[Row]:
        return (row for epoch in sorted(self.shown) for once in self.shown[epoch] for row in once)


@dataclass(frozen=True)
class Tally:
    """Rows beside the reference's."""

    rows: int = 0
    lost: int = 0
    doubled: int = 0
    changed: int = 0
    invented: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(*map(add, astuple(self), astuple(other)))


Compared = tuple[Tally, tuple[str, ...]]
"""What is wrong in numbers, and in words."""
Counted = Mapping[Hashable, int]


def compare_rows(shape: SinkShape, expected: SinkLeft, found: SinkLeft) -> Compared:
    """Judge what a sink shows by what that of the reference does."""
    if shape.key is None:
        return _by_rows(shape, expected, found)
    return _by_key(shape, shape.key, expected, found)


def _by_rows(shape: SinkShape, expected: SinkLeft, found: SinkLeft) -> Compared:
    wanted = Counter(canonical(row, shape.passing) for row in expected.rows())
    there = Counter(canonical(row, shape.passing) for row in found.rows())
    missing, extra = wanted - there, there - wanted
    doubled = {row: times for row, times in extra.items() if row in wanted}
    foreign = {row: times for row, times in extra.items() if row not in wanted}
    lacking, strange = sum(missing.values()), sum(foreign.values())
    changed = min(lacking, strange)
    tally = Tally(sum(there.values()), lacking - changed, sum(doubled.values()), changed, strange - changed)
    reasons = [
        *_told("is missing", missing),
        *_told("is there too often", doubled),
        *_told("is not in the reference", foreign),
    ]
    return tally, tuple(reasons)


def _told(what: str, rows: Counted) -> list[str]:
    shown = [f"row {_words(row)} {what} ({times} times)" for row, times in list(rows.items())[:REASONS_MAX]]
    left = len(rows) - len(shown)
    return shown + ([f"... and {left} more like these"] if left > 0 else [])


def _words(row: Any) -> str:
    return "{" + ", ".join(f"{name}: {value}" for name, value in row) + "}"


def _by_key(shape: SinkShape, key: tuple[str, ...], expected: SinkLeft, found: SinkLeft) -> Compared:
    wanted, there = _last_rows(shape, key, expected), _last_rows(shape, key, found)
    lost, invented = wanted.keys() - there.keys(), there.keys() - wanted.keys()
    differing = [name for name in wanted.keys() & there.keys() if wanted[name] != there[name]]
    changed = [name for name in differing if not _is_repeated(there[name], wanted[name])]
    doubled, reasons = _repeated(shape, key, found)
    if shape.several:
        more = {name: len(there[name]) - len(wanted[name]) for name in set(differing) - set(changed)}
        doubled += sum(more.values())
        reasons += [f"window {name} has {more[name]} rows too often" for name in _first(more)]
    for name in _first(changed):
        last, in_reference = (" ".join(map(_words, each[name])) for each in (there, wanted))
        reasons.append(f"last row {last}, in the reference {in_reference}")
    reasons += [f"key {name} is missing" for name in _first(lost)]
    reasons += [f"key {name} is not in the reference" for name in _first(invented)]
    rows = sum(1 for _ in found.rows())
    return Tally(rows, len(lost), doubled, len(changed), len(invented)), tuple(reasons)


def _is_repeated(there: tuple[Any, ...], wanted: tuple[Any, ...]) -> bool:
    """Whether these rows are the right ones, some of them too often."""
    return set(there) == set(wanted) and not Counter(wanted) - Counter(there)


def _repeated(shape: SinkShape, key: tuple[str, ...], found: SinkLeft) -> tuple[int, list[str]]:
    """How often a key (and window) is there where it may be there once, and what to say of it."""
    doubled = 0
    reasons: list[str] = []
    epochs: dict[Hashable, set[int]] = defaultdict(set)
    for epoch, times in found.shown.items():
        touched = Counter(_key(key, row) for once in times for row in once)
        for name in touched:
            epochs[name].add(epoch)
        more = 0 if shape.several else sum(count - 1 for count in touched.values())
        doubled += more
        if more and len(reasons) < REASONS_MAX:
            reasons.append(f"epoch {epoch} has {more} keys more than once")
    if shape.once:
        again = {name: sorted(shown) for name, shown in epochs.items() if len(shown) > 1}
        doubled += sum(len(shown) - 1 for shown in again.values())
        reasons += [f"window {name} is shown in epochs {again[name]}" for name in _first(again)]
    return doubled, reasons


def _first(names: Iterable[Hashable]) -> list[Hashable]:
    return sorted(names, key=repr)[:REASONS_MAX]


def _last_rows(shape: SinkShape, key: tuple[str, ...], left: SinkLeft) -> dict[Hashable, tuple[Any, ...]]:
    """Key -> what was shown of it last, in no order. A window that was deleted is not there."""
    if not shape.windows:
        return {_key(key, row): (canonical(row, shape.passing),) for row in left.rows()}
    newest: dict[Hashable, int] = {}
    rows: dict[Hashable, list[Row]] = {}
    for row in left.rows():
        name, revision = _key(key, row), int(row[REVISION])
        if revision > newest.get(name, -1):
            newest[name], rows[name] = revision, []
        if revision == newest[name]:
            rows[name].append(row)
    return {
        name: tuple(sorted((canonical(row, shape.passing) for row in each), key=repr))
        for name, each in rows.items()
        if not any(_is_deleted(row) for row in each)
    }


def _is_deleted(row: Row) -> bool:
    """Also in a CSV file, which has text alone."""
    return str(row.get(DELETED)).lower() == "true"


def _key(key: tuple[str, ...], row: Row) -> Hashable:
    return tuple(plain(row.get(column)) for column in key)


def canonical(row: Row, passing: tuple[str, ...] = ()) -> Hashable:
    """A row as something that can be counted, without the columns that are `passing`."""
    return tuple((name, plain(value)) for name, value in sorted(row.items()) if name not in passing)


def plain(value: Any) -> Hashable:
    """A value that equals itself in every run: floats to 12 digits, since sums depend on the order."""
    if isinstance(value, float):
        return f"{value:.12g}"
    if isinstance(value, dict):
        return tuple(sorted(((str(name), plain(item)) for name, item in value.items()), key=repr))
    if isinstance(value, list | tuple):
        return tuple(plain(item) for item in value)
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    assert isinstance(value, Hashable)
    return value
