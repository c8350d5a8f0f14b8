"""How sources fare, as a run tells it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from holdfast.graph.job_graph import Place, SourceNode
from holdfast.runtime.epoch.set_aside import RowsAside
from holdfast.runtime.epoch.source_health import SourceHealth
from holdfast.runtime.progress import Monitor
from holdfast.testing.clocks import ManualClock

MINUTE = 60_000


class Drifting:
    def __init__(self) -> None:
        self.columns: dict[str, str] = {}

    def undeclared(self) -> dict[str, str]:
        return dict(self.columns)


class Told:
    """A monitor, and the health of a watched source and of one that is not."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.monitor = Monitor("job", ManualClock(0), [], [self.said.append])
        self.begin(0)

    def begin(self, now_ms: int) -> None:
        source: Any = None
        here = Place(__file__, 1)
        nodes = [
            SourceNode(uid="watched", source=source, place=here, stalled_after="5m"),
            SourceNode(uid="other", source=source, place=here),
        ]
        self.health = SourceHealth(nodes, self.monitor, now_ms)

    def ran(self, now_ms: int, *uids: str, **aside: RowsAside) -> None:
        plan: Any = SimpleNamespace(slices=dict.fromkeys(uids))
        self.health.ran(plan, aside, now_ms)

    def one(self, uid: str) -> dict[str, Any]:
        return self.monitor.progress.sources[uid]


def test_silence_is_said_once_and_ends_with_rows() -> None:
    told = Told()
    told.health.look({}, 4 * MINUTE)
    assert (told.said, told.one("watched")["silent"]) == ([], False)
    for minute in (5, 6, 7):
        told.health.look({}, minute * MINUTE)
    assert [text.split(";")[0] for text in told.said] == ["SILENT: source 'watched' has had no rows for 5m"]
    assert (told.one("watched")["silent"], told.one("watched")["rows_ms"]) == (True, 0)
    told.ran(8 * MINUTE, "watched")
    told.health.look({}, 8 * MINUTE)
    assert told.said[1:] == ["source 'watched' has rows again"]
    assert not told.one("watched")["silent"]


def test_rows_of_another_source_do_not_end_the_silence() -> None:
    told = Told()
    told.ran(5 * MINUTE, "other")
    told.health.look({}, 5 * MINUTE)
    assert told.one("watched")["silent"]
    assert "other" not in told.monitor.progress.sources


def test_rows_set_aside_are_counted_over_restarts_within_the_process() -> None:
    told = Told()
    told.ran(1, "other", other=RowsAside(2, "first"))
    told.health.look({}, 6 * MINUTE)
    told.begin(6 * MINUTE)
    told.ran(6 * MINUTE, "other", other=RowsAside(3, "second"))
    told.health.look({}, 6 * MINUTE)
    assert (told.one("other")["set_aside"], told.one("other")["reason"]) == (5, "second")
    assert len(told.said) == 1, "silence that was said is not said again"


def test_columns_keep_the_file_that_had_them_first() -> None:
    told, reader = Told(), Drifting()
    reader.columns = {"x": "1.json"}
    readers: Any = {"other": reader, "watched": object()}
    told.health.look(readers, 1)
    reader.columns = {"x": "9.json", "y": "9.json"}
    told.health.look(readers, 2)
    assert told.one("other")["undeclared"] == {"x": "1.json", "y": "9.json"}


def test_a_source_that_knows_how_it_fares_is_shown_with_what_it_says() -> None:
    class Monitored:
        said = "held up by transaction 815"

        def health(self) -> str:
            return self.said

    told, reader = Told(), Monitored()
    readers: Any = {"other": reader}
    told.health.look(readers, 1)
    assert told.one("other")["health"] == "held up by transaction 815"
    reader.said = ""
    told.health.look(readers, 2)
    assert "other" not in told.monitor.progress.sources
