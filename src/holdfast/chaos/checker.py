"""Judges a run under faults by a reference without them: state and sinks, part by part. Pure.

The verdict is true, false or unknown, with reasons. *Unknown* means that the evidence does not decide (the
job has not ended, a file cannot be read, the job gives other results each time), which is never taken for
success.

What is compared, since epochs are cut elsewhere in every run:
- rows of a sink: as a multiset;
- rows of an aggregation (one row per touched key and epoch): the last one of each key;
- state: key by key, at the end.
What is right or wrong whatever the job computes: an epoch shown with two contents, an epoch that no sink was
given, an epoch shown that was never committed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from enum import StrEnum
from operator import add
from typing import Any

from holdfast.chaos.independent_reader import State

REASONS_MAX = 5
"""Of each kind of wrong, that many are told: the first ones say what happened."""

Row = dict[str, Any]


class Verdict(StrEnum):
    TRUE = "true"
    FALSE = "false"
    UNKNOWN = "unknown"


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """One false makes all false; otherwise one unknown makes all unknown. Nothing at all proves nothing."""
    given = list(verdicts)
    for verdict in (Verdict.FALSE, Verdict.UNKNOWN):
        if verdict in given:
            return verdict
    return Verdict.TRUE if given else Verdict.UNKNOWN


@dataclass(frozen=True, kw_only=True)
class SinkShape:
    """How a sink's rows can be compared, by what stands before it in the graph."""

    uid: str
    dedupes: bool = True
    """Whether it recognises an epoch that it already shows."""
    key: tuple[str, ...] | None = None
    """Of an aggregation: rows are compared by their last one per key."""
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


@dataclass(frozen=True, kw_only=True)
class Left:
    """What a run left behind. `unreadable`: why some of it cannot be told."""

    ended: bool
    last_epoch: int
    sinks: dict[str, SinkLeft]
    states: dict[str, State]
    unreadable: tuple[str, ...] = ()
    broken: str = ""
    """Why the job could not go on: an error that no restart cures."""


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


@dataclass(frozen=True)
class Part:
    """A verdict on one part of the job. `certain`: it holds whatever the job computes."""

    name: str
    verdict: Verdict
    reasons: tuple[str, ...] = ()
    tally: Tally = field(default_factory=Tally)
    certain: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {self.verdict}" + "".join(f"\n  - {reason}" for reason in self.reasons)


@dataclass(frozen=True)
class Finding:
    """The verdict on a run."""

    parts: tuple[Part, ...]

    @property
    def verdict(self) -> Verdict:
        return worst(part.verdict for part in self.parts)

    @property
    def tally(self) -> Tally:
        return sum((part.tally for part in self.parts), Tally())

    @property
    def reasons(self) -> tuple[str, ...]:
        return tuple(f"{part.name}: {reason}" for part in self.parts for reason in part.reasons)


def compare(sinks: Sequence[SinkShape], guarantee: str, reference: Left, run: Left) -> Finding:
    """Judge `run` by `reference`."""
    parts = [_ending(run), *(_publishing(shape, guarantee, run) for shape in sinks)]
    if reference.ended and run.ended:
        parts += [_sink(shape, guarantee, reference, run) for shape in sinks]
        if guarantee != "at-most-once":
            parts += [
                _state(uid, reference, run) for uid in sorted(reference.states.keys() | run.states.keys())
            ]
    elif not reference.ended:
        reason = "it did not end by itself in its time; under chaos a job needs bounded sources"
        parts.append(Part("reference", Verdict.UNKNOWN, (reason,)))
    return Finding(tuple(parts))


def doubted(finding: Finding, again: Finding) -> Finding:
    """`again` judges a second run without faults: a part that it, too, finds wrong differs from run to run by
    itself, and says nothing about faults.
    """
    differing = {part.name for part in again.parts if part.verdict is Verdict.FALSE and not part.certain}
    reason = "two runs without faults differ here, too; check it by a function of your own (--check)"
    return Finding(
        tuple(
            replace(part, verdict=Verdict.UNKNOWN, reasons=(reason,), tally=Tally(part.tally.rows))
            if part.name in differing and part.verdict is Verdict.FALSE
            else part
            for part in finding.parts
        )
    )


def _ending(run: Left) -> Part:
    reasons = list(run.unreadable)
    if run.broken:
        return Part("run", Verdict.FALSE, (run.broken, *reasons), certain=True)
    if not run.ended:
        reasons.append("the job has not ended")
    return Part("run", Verdict.UNKNOWN if reasons else Verdict.TRUE, tuple(reasons), certain=True)


def _publishing(shape: SinkShape, guarantee: str, run: Left) -> Part:
    """What holds for any job, whatever it computes."""
    left = run.sinks.get(shape.uid, SinkLeft(shown={}))
    wrong = [f"epoch {epoch} was published again with other rows" for epoch in left.conflicts[:REASONS_MAX]]
    uncommitted = sorted(epoch for epoch in left.shown if epoch > run.last_epoch)
    if uncommitted and run.ended:
        wrong.append(f"epochs {uncommitted[:REASONS_MAX]} are shown and were never committed")
    missing = sorted(set(range(1, run.last_epoch + 1)) - left.given - left.shown.keys())
    if missing and run.ended and guarantee != "at-most-once":
        wrong.append(f"{len(missing)} committed epochs were never published, {missing[0]} is the first")
    if guarantee == "at-most-once":
        twice = sorted(epoch for epoch, times in left.shown.items() if len(times) > 1)
        wrong += [f"epoch {epoch} is shown twice" for epoch in twice[:REASONS_MAX]]
    verdict = Verdict.FALSE if wrong else Verdict.TRUE
    return Part(f"publishing to {shape.uid}", verdict, tuple(wrong), certain=True)


def _sink(shape: SinkShape, guarantee: str, reference: Left, run: Left) -> Part:
    name = f"sink {shape.uid}"
    expected = reference.sinks.get(shape.uid, SinkLeft(shown={}))
    found = run.sinks.get(shape.uid, SinkLeft(shown={}))
    if guarantee == "at-most-once" and not shape.stateless:
        rows = sum(1 for _ in found.rows())
        return Part(name, Verdict.TRUE, (), Tally(rows))  # what was lost changes what comes after it
    if shape.key is not None:
        tally, reasons = _by_last_row(shape.key, expected, found)
    else:
        tally, reasons = _by_rows(expected, found)
    forgiven = 0
    if guarantee == "at-most-once":
        forgiven = tally.lost
    elif guarantee == "at-least-once" and not shape.dedupes:
        forgiven = tally.doubled
    wrong = tally.lost + tally.doubled + tally.changed + tally.invented - forgiven
    return Part(name, Verdict.FALSE if wrong else Verdict.TRUE, reasons if wrong else (), tally)


def _by_rows(expected: SinkLeft, found: SinkLeft) -> tuple[Tally, tuple[str, ...]]:
    wanted = Counter(map(canonical, expected.rows()))
    there = Counter(map(canonical, found.rows()))
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


def _told(what: str, rows: Mapping[Hashable, int]) -> list[str]:
    shown = [f"row {_words(row)} {what} ({times} times)" for row, times in list(rows.items())[:REASONS_MAX]]
    left = len(rows) - len(shown)
    return shown + ([f"... and {left} more like these"] if left > 0 else [])


def _words(row: Any) -> str:
    return "{" + ", ".join(f"{name}: {value}" for name, value in row) + "}"


def _by_last_row(key: tuple[str, ...], expected: SinkLeft, found: SinkLeft) -> tuple[Tally, tuple[str, ...]]:
    wanted, there = _last_rows(key, expected), _last_rows(key, found)
    lost, invented = wanted.keys() - there.keys(), there.keys() - wanted.keys()
    changed = [name for name in wanted.keys() & there.keys() if wanted[name] != there[name]]
    doubled = 0
    reasons: list[str] = []
    for epoch, times in found.shown.items():
        touched = Counter(_key(key, row) for once in times for row in once)
        more = sum(count - 1 for count in touched.values())
        doubled += more
        if more and len(reasons) < REASONS_MAX:
            reasons.append(f"epoch {epoch} has {more} keys more than once")
    for name in _first(changed):
        reasons.append(f"last row {_words(there[name])}, in the reference {_words(wanted[name])}")
    reasons += [f"key {name} is missing" for name in _first(lost)]
    reasons += [f"key {name} is not in the reference" for name in _first(invented)]
    rows = sum(1 for _ in found.rows())
    return Tally(rows, len(lost), doubled, len(changed), len(invented)), tuple(reasons)


def _first(names: Iterable[Hashable]) -> list[Hashable]:
    return sorted(names, key=repr)[:REASONS_MAX]


def _last_rows(key: tuple[str, ...], left: SinkLeft) -> dict[Hashable, Any]:
    return {_key(key, row): canonical(row) for row in left.rows()}


def _key(key: tuple[str, ...], row: Row) -> Hashable:
    return tuple(plain(row.get(column)) for column in key)


def _state(uid: str, reference: Left, run: Left) -> Part:
    wanted = {plain(key): plain(values) for key, values in reference.states.get(uid, {}).items()}
    there = {plain(key): plain(values) for key, values in run.states.get(uid, {}).items()}
    wrong = [
        f"key {key} has {there.get(key, 'no state')}, in the reference {wanted.get(key, 'no state')}"
        for key in sorted(wanted.keys() | there.keys(), key=repr)
        if wanted.get(key) != there.get(key)
    ]
    more = [f"... and {len(wrong) - REASONS_MAX} more"] if len(wrong) > REASONS_MAX else []
    verdict = Verdict.FALSE if wrong else Verdict.TRUE
    return Part(f"state of {uid}", verdict, (*wrong[:REASONS_MAX], *more))


def canonical(row: Row) -> Hashable:
    """A row as something that can be counted."""
    return tuple((name, plain(value)) for name, value in sorted(row.items()))


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
