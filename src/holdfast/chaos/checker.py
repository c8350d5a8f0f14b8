"""Judges a run under faults by a reference without them: state and sinks, part by part. Pure.

The verdict is true, false or unknown, with reasons. *Unknown* means that the evidence does not decide (the
job has not ended, a file cannot be read, the job gives other results each time), which is never taken for
success.

What is compared: the rows of sinks (see shown_rows), and state key by key, at the end.
What is right or wrong whatever the job computes: an epoch shown with two contents, an epoch that no sink was
given, an epoch shown that was never committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from holdfast.chaos.independent_reader import State
from holdfast.chaos.shown_rows import REASONS_MAX, SinkLeft, SinkShape, Tally, compare_rows, plain


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
    tally, reasons = compare_rows(shape, expected, found)
    forgiven = 0
    if guarantee == "at-most-once":
        forgiven = tally.lost
    elif guarantee == "at-least-once" and not shape.dedupes:
        forgiven = tally.doubled
    wrong = tally.lost + tally.doubled + tally.changed + tally.invented - forgiven
    return Part(name, Verdict.FALSE if wrong else Verdict.TRUE, reasons if wrong else (), tally)


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
