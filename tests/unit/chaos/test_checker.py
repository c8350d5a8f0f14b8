"""The judge is judged: each kind of wrong is found, right is let pass, and doubt is called doubt."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from holdfast.chaos.checker import Finding, Left, Verdict, compare, doubted, worst
from holdfast.chaos.shown_rows import SinkLeft, SinkShape, Tally, plain

ROWS, SUMS = SinkShape(uid="rows"), SinkShape(uid="sums", key=("key",))
SHAPES = [ROWS, SUMS]


def left(cut: int) -> Left:
    """What a right run leaves, with `cut` events in an epoch."""
    shown: dict[int, list[list[Any]]] = {}
    sums: dict[int, list[list[Any]]] = {}
    state: dict[tuple[Any, ...], dict[str, Any]] = {}
    for event in range(24):
        epoch = event // cut + 1
        key = event % 3
        total = state.get((key,), {"total": 0.0})["total"] + event / 10
        state[(key,)] = {"total": total}
        shown.setdefault(epoch, [[]])[0].append({"event": event, "total": total})
        newest = {"key": key, "total": total}
        kept = [row for row in sums.get(epoch, [[]])[0] if row["key"] != key]
        sums[epoch] = [[*kept, newest]]
    epochs = frozenset(shown)
    return Left(
        ended=True,
        last_epoch=max(epochs),
        sinks={"rows": SinkLeft(shown=shown, given=epochs), "sums": SinkLeft(shown=sums, given=epochs)},
        states={"totals": state},
    )


def judged(doctor: Callable[[Left], Left | None], guarantee: str = "exactly-once") -> Finding:
    run = copy.deepcopy(left(cut=5))
    return compare(SHAPES, guarantee, left(cut=4), doctor(run) or run)


def test_a_run_with_epochs_cut_elsewhere_is_right() -> None:
    finding = judged(lambda run: None)
    assert finding.verdict is Verdict.TRUE, finding.reasons
    assert finding.tally.rows > 24
    assert replace(finding.tally, rows=0) == Tally()


def _lose(run: Left) -> None:
    del run.sinks["rows"].shown[2][0][1]


def _double(run: Left) -> None:
    run.sinks["rows"].shown[2][0].append(run.sinks["rows"].shown[2][0][1])


def _show_twice(run: Left) -> None:
    run.sinks["rows"].shown[3] *= 2


def _change(run: Left) -> None:
    run.sinks["rows"].shown[2][0][1]["total"] += 1


def _invent(run: Left) -> None:
    run.sinks["rows"].shown[2][0].append({"event": 99, "total": 0.0})


def _change_sum(run: Left) -> None:
    run.sinks["sums"].shown[5][0][0]["total"] += 1


def _lose_key(run: Left) -> None:
    for times in run.sinks["sums"].shown.values():
        times[0][:] = [row for row in times[0] if row["key"] != 1]


def _repeat_key(run: Left) -> None:
    run.sinks["sums"].shown[5][0] *= 2


@pytest.mark.parametrize(
    ("doctor", "tally"),
    [
        (_lose, Tally(lost=1)),
        (_double, Tally(doubled=1)),
        (_show_twice, Tally(doubled=5)),
        (_change, Tally(changed=1)),
        (_invent, Tally(invented=1)),
        (_change_sum, Tally(changed=1)),
        (_lose_key, Tally(lost=1)),
        (_repeat_key, Tally(doubled=3)),
    ],
)
def test_rows_that_are_not_right_are_counted_by_what_is_wrong(
    doctor: Callable[[Left], None], tally: Tally
) -> None:
    finding = judged(doctor)
    assert finding.verdict is Verdict.FALSE
    assert replace(finding.tally, rows=0) == tally
    assert finding.reasons


def test_state_that_differs_is_wrong() -> None:
    finding = judged(lambda run: run.states["totals"][(1,)].update(total=0.0))
    assert finding.verdict is Verdict.FALSE
    assert "key (1,) has" in str(finding.reasons)


def test_state_of_a_key_that_is_gone_is_wrong() -> None:
    assert judged(lambda run: run.states["totals"].pop((1,)) and None).verdict is Verdict.FALSE


def test_an_operator_without_any_state_is_wrong() -> None:
    assert judged(lambda run: run.states.clear()).verdict is Verdict.FALSE


def _sink(run: Left, uid: str, **changed: Any) -> Left:
    return replace(run, sinks={**run.sinks, uid: replace(run.sinks[uid], **changed)})


@pytest.mark.parametrize(
    ("doctor", "reason"),
    [
        (lambda run: _sink(run, "rows", conflicts=(3,)), "epoch 3 was published again with other rows"),
        (lambda run: replace(run, last_epoch=run.last_epoch - 1), "never committed"),
        (lambda run: replace(run, last_epoch=run.last_epoch + 1), "never published"),
        (lambda run: replace(run, broken="driver-9 ended with 4"), "driver-9 ended with 4"),
    ],
)
def test_what_is_wrong_whatever_the_job_computes_is_certain(
    doctor: Callable[[Left], Left], reason: str
) -> None:
    finding = judged(doctor)
    assert reason in str(finding.reasons)
    assert finding.verdict is Verdict.FALSE
    assert doubted(finding, finding).verdict is Verdict.FALSE


@pytest.mark.parametrize(
    "doctor",
    [lambda run: replace(run, ended=False), lambda run: replace(run, unreadable=("no such file",))],
)
def test_what_does_not_decide_is_unknown(doctor: Callable[[Left], Left]) -> None:
    assert judged(doctor).verdict is Verdict.UNKNOWN


def test_an_unfinished_run_can_be_wrong_already() -> None:
    unfinished = judged(lambda run: replace(_sink(run, "rows", conflicts=(2,)), ended=False))
    assert unfinished.verdict is Verdict.FALSE


def test_a_reference_that_has_not_ended_proves_nothing() -> None:
    finding = compare(SHAPES, "exactly-once", replace(left(4), ended=False), left(5))
    assert finding.verdict is Verdict.UNKNOWN


def test_what_differs_between_two_runs_without_faults_is_in_doubt() -> None:
    finding = judged(_change)
    assert doubted(finding, judged(_change)).verdict is Verdict.UNKNOWN
    assert doubted(finding, judged(_change_sum)).verdict is Verdict.FALSE
    assert doubted(finding, judged(lambda run: None)).verdict is Verdict.FALSE


def test_at_least_once_forgives_what_a_sink_that_cannot_recognise_it_repeats() -> None:
    repeating = [replace(ROWS, dedupes=False), SUMS]
    run = copy.deepcopy(left(5))
    _show_twice(run)
    finding = compare(repeating, "at-least-once", left(4), run)
    assert (finding.verdict, finding.tally.doubled) == (Verdict.TRUE, 5)
    assert compare(SHAPES, "at-least-once", left(4), run).verdict is Verdict.FALSE
    _lose(run)
    assert compare(repeating, "at-least-once", left(4), run).verdict is Verdict.FALSE


def test_at_most_once_forgives_loss_and_no_repetition() -> None:
    shapes = [replace(ROWS, stateless=True), SUMS]
    run = copy.deepcopy(left(5))
    del run.sinks["rows"].shown[2], run.states["totals"]
    finding = compare(shapes, "at-most-once", left(4), run)
    assert (finding.verdict, finding.tally.lost) == (Verdict.TRUE, 5)
    _show_twice(run)
    assert compare(shapes, "at-most-once", left(4), run).verdict is Verdict.FALSE


def test_the_worst_verdict_counts_and_none_proves_nothing() -> None:
    assert worst([Verdict.TRUE, Verdict.UNKNOWN, Verdict.FALSE]) is Verdict.FALSE
    assert worst([Verdict.TRUE, Verdict.UNKNOWN]) is Verdict.UNKNOWN
    assert worst([]) is Verdict.UNKNOWN


def test_sums_of_floats_in_another_order_are_the_same() -> None:
    assert plain(0.1 + 0.2 + 0.3) == plain(0.3 + 0.2 + 0.1)
    assert plain(1.0) != plain(1.0000001)
    assert plain({"b": [1.0], "a": None}) == plain({"a": None, "b": (1.0,)})
