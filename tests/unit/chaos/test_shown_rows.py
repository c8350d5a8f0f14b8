"""Windows under the judge: revisions and deleted sessions are not held against a run, and all else is."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import holdfast as hf
from holdfast.chaos.evidence import sink_shapes
from holdfast.chaos.shown_rows import SinkLeft, SinkShape, Tally, compare_rows

WINDOWS = SinkShape(
    uid="out", key=("user", "window_start", "window_end"), windows=True, passing=("revision",)
)
LATE = SinkShape(uid="late", passing=("watermark",))


def row(user: str, start: int, rows: int, **more: Any) -> dict[str, Any]:
    return {"user": user, "window_start": start, "window_end": start + 10, "rows": rows, **more}


def left(*epochs: list[dict[str, Any]], revised: bool = True) -> SinkLeft:
    """What a sink shows, epoch by epoch from 1 on."""
    shown = {
        epoch: [[{**each, "revision": epoch} for each in rows] if revised else rows]
        for epoch, rows in enumerate(epochs, start=1)
        if rows
    }
    return SinkLeft(shown=shown, given=frozenset(range(1, len(epochs) + 1)))


EXPECTED = left([row("a", 0, 2)], [row("a", 0, 3), row("b", 0, 1)], [row("a", 10, 4)])
"""Window 0 of a was shown early, and again with the row that came late."""


def tally(found: SinkLeft, shape: SinkShape = WINDOWS, expected: SinkLeft = EXPECTED) -> Tally:
    counted, reasons = compare_rows(shape, expected, found)
    wrong = replace(counted, rows=0)
    assert bool(reasons) == (wrong != Tally()), reasons
    return wrong


@pytest.mark.parametrize(
    "found",
    [
        left([], [row("a", 0, 3), row("a", 10, 4)], [row("b", 0, 1)]),
        left([row("a", 0, 1)], [row("a", 0, 2)], [row("a", 0, 3)], [row("b", 0, 1), row("a", 10, 4)]),
    ],
)
def test_only_the_newest_revision_of_a_window_counts(found: SinkLeft) -> None:
    assert tally(found) == Tally()


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        (left([row("a", 0, 3), row("a", 10, 4)]), Tally(lost=1)),
        (left([row("a", 0, 2)], [row("b", 0, 1)], [row("a", 10, 4)]), Tally(changed=1)),
        (left([row("a", 0, 3)], [row("a", 0, 2), row("b", 0, 1), row("a", 10, 4)]), Tally(changed=1)),
        (left([row("a", 0, 3), row("b", 0, 1), row("a", 10, 4), row("c", 0, 1)]), Tally(invented=1)),
        (left([row("a", 0, 3), row("b", 0, 1), row("a", 10, 4), row("a", 10, 4)]), Tally(doubled=1)),
        (left([row("a", 0, 2)] * 2, [row("a", 0, 3), row("b", 0, 1), row("a", 10, 4)]), Tally(doubled=1)),
    ],
)
def test_what_is_wrong_with_windows_is_counted_by_kind(found: SinkLeft, wrong: Tally) -> None:
    assert tally(found) == wrong


def test_a_window_that_is_shown_once_by_declaration_may_not_be_shown_again() -> None:
    expected = left([row("a", 0, 3)])
    again = left([row("a", 0, 3)], [], [row("a", 0, 3)])
    assert tally(again, WINDOWS, expected) == Tally()
    assert tally(again, replace(WINDOWS, once=True), expected) == Tally(doubled=1)


def test_a_session_that_was_deleted_is_none() -> None:
    expected = left([row("a", 0, 5, deleted=False)])
    grown = left(
        [row("a", 3, 2, deleted=False)],
        [row("a", 0, 5, deleted=False), row("a", 3, 0, deleted=True)],
    )
    assert tally(grown, WINDOWS, expected) == Tally()
    undeleted = copy.deepcopy(grown)
    undeleted.shown[2][0].pop()
    assert tally(undeleted, WINDOWS, expected) == Tally(invented=1)
    gone = left([row("a", 0, 5, deleted=False)], [row("a", 0, 0, deleted=True)])
    assert tally(gone, WINDOWS, expected) == Tally(lost=1)


def test_files_of_text_are_read_alike() -> None:
    expected = left([row("a", 0, 5, deleted="false")])
    text = left([row("a", 3, 2, deleted="false")], [row("a", 0, 5, deleted="false")])
    text.shown[2][0].append(row("a", 3, 0, deleted="true", revision="2"))
    text.shown[1][0][0]["revision"] = "1"
    assert tally(text, WINDOWS, expected) == Tally()


def test_of_a_function_over_windows_all_rows_of_the_newest_revision_count() -> None:
    several = replace(WINDOWS, several=True)
    expected = left([row("a", 0, 1), row("a", 0, 2)])
    assert tally(left([row("a", 0, 1)], [row("a", 0, 2), row("a", 0, 1)]), several, expected) == Tally()
    assert tally(left([row("a", 0, 1)]), several, expected) == Tally(changed=1)
    twice = left([row("a", 0, 1), row("a", 0, 2), row("a", 0, 2)])
    assert tally(twice, several, expected) == Tally(doubled=1)


def test_late_rows_are_compared_without_the_watermark_that_they_came_after() -> None:
    expected = left([{"event": 1, "watermark": 5}], revised=False)
    assert tally(left([], [{"event": 1, "watermark": 9}], revised=False), LATE, expected) == Tally()
    assert tally(left([{"event": 2, "watermark": 5}], revised=False), LATE, expected) == Tally(changed=1)


class Told(hf.WindowFunction):
    output = "n long"

    def process(self, window: Any, rows: Any, ctx: Any) -> Any:
        return []


def shape_of(window: Callable[[Any], Any]) -> SinkShape:
    job = hf.Job("shapes")
    rows = job.source(hf.MemorySource([], schema="user string, ts timestamp"), uid="in")
    window(rows.watermark("ts", delay="1s").key_by("user")).sink(hf.MemorySink(), uid="out")
    return sink_shapes(job.graph())[0]


def test_the_graph_says_how_rows_of_windows_are_compared() -> None:
    tumbling = shape_of(
        lambda keyed: keyed.window(hf.tumbling("1m"), on="ts").aggregate(uid="w", n=hf.count())
    )
    assert tumbling == replace(WINDOWS, once=True)
    later = shape_of(
        lambda keyed: keyed.window(hf.session("1m"), on="ts", allowed_lateness="1m").process(Told(), uid="w")
    )
    assert later == replace(WINDOWS, several=True)
    counted = shape_of(lambda keyed: keyed.window(hf.count_window(3)).aggregate(uid="w", n=hf.count()))
    assert (counted.key, counted.once) == (("user", "window"), True)
    late = shape_of(
        lambda keyed: keyed.window(hf.tumbling("1m"), on="ts").aggregate(uid="w", n=hf.count()).late()
    )
    assert (late.key, late.passing) == (None, ("watermark",))
