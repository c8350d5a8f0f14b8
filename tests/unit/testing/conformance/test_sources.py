"""Every promise of a source about planning is asked for: a source that breaks just this one is told so. Those
about frames are in tests/spark/test_sources_on_spark.py."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.testing import conformance
from holdfast.testing.conformance.source_frames import FRAMES
from holdfast.testing.conformance.source_planning import PLANNING
from tests.unit.testing.conformance.broken_sources import BROKEN, ROWS, HonestReader, HonestSource


def asked(source: type[HonestSource], **how: Any) -> conformance.Report:
    return conformance.check_source(lambda: source(list(range(ROWS))), **how)


def test_a_source_that_keeps_everything_passes() -> None:
    report = asked(HonestSource)
    assert report.kept == PLANNING.names
    assert tuple(report.not_asked) == FRAMES.names
    assert report.not_asked["no-row-twice"] == "no Spark session was given; give spark="
    assert report.not_asked["vanished-input"] == "nothing was given that destroys input; give vanish="


def test_there_is_a_broken_source_for_every_promise() -> None:
    assert tuple(BROKEN) == PLANNING.then(FRAMES).names


@pytest.mark.parametrize("name", PLANNING.names)
def test_a_broken_promise_is_named_with_what_was_seen_and_what_to_do(name: str) -> None:
    with pytest.raises(conformance.BrokenPromises) as found:
        asked(BROKEN[name])
    broken = {each.name: each for each in found.value.broken}
    assert name in broken
    assert len(broken) <= 4, "a check that finds everything finds nothing"
    for part in (name, broken[name].promise, broken[name].seen, broken[name].remedy):
        assert part in str(found.value)


def test_what_is_seen_names_position_and_rows() -> None:
    with pytest.raises(conformance.BrokenPromises, match="older-position: next") as found:
        asked(BROKEN["older-position"], only=["older-position"])
    assert found.value.broken[0].seen == "after 3 first 7 rows were planned, then 0"


def test_a_source_without_end_is_told_apart_from_one_that_never_comes_to_it() -> None:
    class Unbounded(HonestReader):
        def exhausted(self, after: Any) -> bool:
            return False

    unbounded = type("Unbounded", (HonestSource,), {"reads": Unbounded})
    assert "exhausted" in asked(unbounded, endless=True).kept
    with pytest.raises(conformance.BrokenPromises, match="is False at the end"):
        asked(unbounded)

    class Endless(HonestReader):
        def next(self, after: Any, max_rows: Any, now_ms: int) -> Any:
            return super().next(0, 1, now_ms)

    with pytest.raises(conformance.BrokenPromises, match="1000 slices with max_rows=3 and no end of them"):
        asked(type("Endless", (HonestSource,), {"reads": Endless}))


def test_a_source_that_cannot_replay_is_not_asked_to() -> None:
    queue = type("Queue", (BROKEN["older-position"],), {"replayable": False})
    report = asked(queue, only=["older-position", "goes-on", "json"])
    assert report.kept == ("json",)
    assert report.not_asked["older-position"] == "it says replayable = False"


def test_a_source_of_too_few_rows_proves_nothing() -> None:
    with pytest.raises(ValueError, match="the source has 2 rows; give the check one of 3 to 1000"):
        conformance.check_source(lambda: HonestSource([1, 2]))
