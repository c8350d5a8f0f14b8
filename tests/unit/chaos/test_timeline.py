"""Figures and picture, from a history written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

from holdfast.chaos.checker import Verdict
from holdfast.chaos.history import Event, History, Recoveries, bound, figures_of
from holdfast.chaos.shown_rows import Tally
from holdfast.chaos.timeline import lives, timeline


def story() -> list[Event]:
    fault = {"fault": "kill-driver", "number": 1, "began": 9.0, "round": 1}
    return [
        Event(0.0, "round", "begins", "round", {"round": 1}),
        Event(0.1, "driver-1", "starts", "start", {"round": 1}),
        Event(5.0, "job", "commit 1", "commit", {"round": 1, "commit": 1}),
        Event(9.0, "nemesis", "kill-driver & more", "fault", fault),
        Event(9.0, "driver-1", "ended with -9", "end", {"round": 1, "code": -9}),
        Event(9.1, "driver-2", "starts", "start", {"round": 1}),
        Event(16.0, "job", "commit 2", "commit", {"round": 1, "commit": 2}),
        Event(16.0, "job", "got over it", "recovered", {**fault, "took": 7.0}),
        Event(18.0, "nemesis", "clock-jump", "missed", {**fault, "fault": "clock-jump", "began": 17.0}),
        Event(20.0, "driver-2", "ended with 0", "end", {"round": 1, "code": 0}),
        Event(20.1, "round", "ends", "round-end", {"round": 1, "restarts": 1}),
    ]


def test_figures_are_counted_from_the_history() -> None:
    figures = figures_of(story(), epochs=2, source_rows=10, tally=Tally(rows=10))
    assert figures.faults == {"kill-driver": 1}
    assert figures.missed == {"clock-jump": 1}
    assert (figures.rounds, figures.restarts, figures.fault_count) == (1, 1, 1)
    assert figures.recoveries == Recoveries(1, 7.0, 7.0, 7.0)


def test_a_reference_does_not_count_as_a_round() -> None:
    reference = [Event(1.0, "round", "ends", "round-end", {"round": 0, "restarts": 0})]
    assert figures_of(reference, epochs=0, source_rows=0, tally=Tally()).rounds == 0


def test_quantiles_of_recoveries() -> None:
    took = Recoveries.of([float(second) for second in range(1, 101)])
    assert (took.p50, took.p95, took.longest) == (50.0, 95.0, 100.0)
    assert Recoveries.of([]) == Recoveries()


def test_the_bound_is_stated_only_for_a_true_verdict() -> None:
    assert bound(Verdict.TRUE, 60) == 0.05
    assert bound(Verdict.TRUE, 1) == 1.0
    assert bound(Verdict.FALSE, 60) is None
    assert bound(Verdict.UNKNOWN, 60) is None
    assert bound(Verdict.TRUE, 0) is None


def test_a_life_works_from_its_first_commit_on() -> None:
    first, second = lives(story())
    assert (first.name, first.start, first.working, first.end) == ("driver-1", 0.1, 5.0, 9.0)
    assert (second.start, second.working, second.end) == (9.1, 16.0, 20.1)


def test_the_picture_shows_every_fault_and_every_life() -> None:
    text = timeline(story(), "a <job>", "seed 7 & more")
    root = ElementTree.fromstring(text)
    name = "{http://www.w3.org/2000/svg}"
    assert len([mark for mark in root.iter(f"{name}circle") if mark.get("class") == "fault"]) == 1
    assert len([mark for mark in root.iter(f"{name}circle") if mark.get("class") == "missed"]) == 1
    assert len([bar for bar in root.iter(f"{name}rect") if bar.get("class") == "life"]) == 4
    assert "a &lt;job&gt;" in text
    assert "kill-driver (1)" in text


def test_a_picture_of_nothing_is_a_picture() -> None:
    ElementTree.fromstring(timeline([], "nothing", ""))


def test_a_history_is_on_disk_as_it_happens(tmp_path: Path) -> None:
    history = History(file=tmp_path / "history.jsonl")
    history.add("nemesis", "kills", "fault", fault="kill-driver", number=3)
    line = json.loads((tmp_path / "history.jsonl").read_text())
    assert (line["who"], line["kind"], line["fault"]) == ("nemesis", "fault", "kill-driver")
    assert "kills" in history.story()
    assert [event.facts["number"] for event in history.of("fault")] == [3]
    history.close()
