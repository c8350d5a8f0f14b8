"""Every promise of a lane sink is asked for: a sink that breaks just this one is told so, by name."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from holdfast.connectors.lane_publisher import LanePublisher
from holdfast.connectors.lanes import LANES, LaneMark, LaneRows, Outcome, Result, continues
from holdfast.testing import SqliteLaneSink, conformance
from holdfast.testing.conformance.lane_writing import WRITING

REFUSED = pa.table({"user": ["a\0b"], "total": [1]})


@dataclass
class Place:
    shown: list[pa.Table] = field(default_factory=list)
    marks: dict[Any, LaneMark] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    away: bool = False

    def rows(self) -> list[tuple[Any, ...]]:
        return [tuple(row.values()) for table in self.shown for row in table.to_pylist()]


PLACES: dict[str, Place] = {}


@dataclass(frozen=True)
class Sink:
    place: str
    lanes: type[Open]
    exactly_once: ClassVar[Any] = True
    atomic: ClassVar[Any] = "lane"
    shared: ClassVar[Any] = True

    def lane_writer(self, job: str, uid: str) -> Any:
        return Writer(self.place, self.lanes, job, uid)

    def publisher(self, job: str, uid: str) -> LanePublisher:
        return LanePublisher(self.lane_writer(job, uid))


@dataclass(frozen=True)
class Writer:
    place: str
    lanes: type[Open]
    job: str
    uid: str

    def open(self, term: int) -> Open:
        return self.lanes(PLACES.setdefault(self.place, Place()), self.job, self.uid)


class Open:
    """Keeps every promise."""

    def __init__(self, place: Place, job: str, uid: str) -> None:
        self.place, self.owner = place, (job, uid)

    def key(self, lane: int) -> Any:
        return (*self.owner, lane)

    def begin(self, through: int) -> None:
        for lane in range(LANES):
            self.place.marks.setdefault(self.key(lane), LaneMark(through))

    def marks(self) -> Mapping[int, LaneMark]:
        return {lane: mark for lane in range(LANES) if (mark := self.place.marks.get(self.key(lane)))}

    def write(self, rows: LaneRows) -> Result:
        tables = list(rows.load())
        if self.place.away:
            return Result(Outcome.UNAVAILABLE, reason="away")
        if any("\0" in str(user) for table in tables for user in table["user"].to_pylist()):
            return Result(Outcome.REFUSED, reason="row 0: NUL in text")
        with self.place.lock:
            mark = self.place.marks.get(self.key(rows.lane))
            start = self.decided(mark, rows)
            if isinstance(start, Outcome):
                return Result(start, mark, reason=str(mark))
            self.place.shown += tables
            self.place.marks[self.key(rows.lane)] = rows.end
        return Result(Outcome.WRITTEN, rows.end)

    def decided(self, mark: LaneMark | None, rows: LaneRows) -> int | Outcome:
        return continues(mark, rows)

    def close(self) -> None:
        return


class NotPlain(Open):
    pass


class Overwriting(Open):
    def begin(self, through: int) -> None:
        self.place.marks |= {self.key(lane): LaneMark(through) for lane in range(LANES)}


class WithoutInput(Open):
    def write(self, rows: LaneRows) -> Result:
        result = super().write(rows)
        if result.outcome is Outcome.WRITTEN:
            self.place.marks[self.key(rows.lane)] = LaneMark(rows.epoch, rows.rows)
        return result


class OncePerRun(Open):
    """Shows again what was shown: the mark is not compared at all."""

    def decided(self, mark: LaneMark | None, rows: LaneRows) -> int | Outcome:
        found = continues(mark, rows)
        same = mark is not None and mark == rows.end and mark.input == rows.input
        return 0 if found is Outcome.ALREADY and same else found


class CheckedApart(Open):
    """The mark is checked in one step, and the rows are written in another."""

    met = threading.Barrier(2)

    def write(self, rows: LaneRows) -> Result:
        tables = list(rows.load())
        mark = self.place.marks.get(self.key(rows.lane))
        if not isinstance(continues(mark, rows), Outcome):
            try:
                self.met.wait(0.5)
            except threading.BrokenBarrierError:
                self.met.reset()
            self.place.shown += tables
            self.place.marks[self.key(rows.lane)] = rows.end
            return Result(Outcome.WRITTEN, rows.end)
        return super().write(rows)


class CheckedEarly(Open):
    """The mark is checked before the rows are loaded, and never again."""

    def write(self, rows: LaneRows) -> Result:
        mark = self.place.marks.get(self.key(rows.lane))
        start = continues(mark, rows)
        if isinstance(start, Outcome):
            return Result(start, mark, reason=str(mark))
        tables = list(rows.load())
        with self.place.lock:
            self.place.shown += tables
            self.place.marks[self.key(rows.lane)] = rows.end
        return Result(Outcome.WRITTEN, rows.end)


class Gapped(Open):
    def decided(self, mark: LaneMark | None, rows: LaneRows) -> int | Outcome:
        found = continues(mark, rows)
        return 0 if found is Outcome.WENT_BACK and mark is not None else found


class AbsentIsZero(Open):
    def decided(self, mark: LaneMark | None, rows: LaneRows) -> int | Outcome:
        return continues(mark or LaneMark(0), rows)


class AnyInput(Open):
    def decided(self, mark: LaneMark | None, rows: LaneRows) -> int | Outcome:
        found = continues(mark, rows)
        return Outcome.ALREADY if found is Outcome.OTHER_ROWS else found

    def write(self, rows: LaneRows) -> Result:
        result = super().write(rows)
        return result if result.outcome is not Outcome.ALREADY else Result(Outcome.ALREADY)


class Streaming(Open):
    """Rows are shown as they are loaded, and the mark moves at the end."""

    def write(self, rows: LaneRows) -> Result:
        if self.place.away or isinstance(continues(self.place.marks.get(self.key(rows.lane)), rows), Outcome):
            return super().write(rows)
        for index, table in enumerate(rows.load()):
            if index >= 2:
                self.place.shown.append(table)
            else:
                held = table
                self.place.shown.append(held)
        self.place.marks[self.key(rows.lane)] = rows.end
        return Result(Outcome.WRITTEN, rows.end)


class Raising(Open):
    def write(self, rows: LaneRows) -> Result:
        if self.place.away:
            raise ConnectionResetError("the server is away")
        return super().write(rows)


class Swallowing(Open):
    def write(self, rows: LaneRows) -> Result:
        result = super().write(rows)
        return Result(Outcome.UNAVAILABLE) if result.outcome is Outcome.REFUSED else result


class Timid(Sink):
    atomic = "row"


class Unpicklable(Sink):
    def lane_writer(self, job: str, uid: str) -> Any:
        writer = Writer(self.place, self.lanes, job, uid)
        object.__setattr__(writer, "__dict__", {**writer.__dict__, "connection": threading.Lock()})
        return writer


BROKEN: dict[str, tuple[type[Sink], type[Open]]] = {
    "lane-sink": (Timid, Open),
    "plain-value": (Unpicklable, Open),
    "begin-makes-marks": (Sink, Overwriting),
    "mark-moves-with-rows": (Sink, WithoutInput),
    "again-changes-nothing": (Sink, OncePerRun),
    "twins-at-once": (Sink, CheckedApart),
    "late-twin": (Sink, CheckedEarly),
    "went-back": (Sink, Gapped),
    "absence-is-loss": (Sink, AbsentIsZero),
    "other-rows": (Sink, AnyInput),
    "half-of-a-lane": (Sink, Streaming),
    "disturbed": (Sink, Raising),
    "refused-rows": (Sink, Swallowing),
}


@contextmanager
def disturbed(place: str) -> Iterator[None]:
    PLACES[place].away = True
    yield
    PLACES[place].away = False


def checked(sink: type[Sink], lanes: type[Open], *only: str) -> conformance.Report:
    PLACES.clear()
    return conformance.check_lanes(
        lambda place: sink(place, lanes),  # type: ignore[arg-type,return-value]
        lambda place: PLACES.get(place, Place()).rows(),
        disturbed=disturbed,
        refused=REFUSED,
        only=only,
    )


def test_a_sink_that_keeps_all_promises_is_told_so() -> None:
    assert checked(Sink, Open).kept == WRITING.names


def test_there_is_a_broken_sink_for_every_promise() -> None:
    assert tuple(BROKEN) == WRITING.names


@pytest.mark.parametrize("name", WRITING.names)
def test_a_broken_promise_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.testing.conformance import lane_case

    monkeypatch.setattr(lane_case, "TRIES_MAX", 3)
    with pytest.raises(conformance.BrokenPromises) as broken:
        checked(*BROKEN[name], name)
    assert [each.name for each in broken.value.broken] == [name]


@pytest.mark.parametrize("chunk_rows", [None, 1], ids=["lane", "chunk"])
def test_the_sink_over_sqlite_keeps_its_promises(tmp_path: Path, chunk_rows: int | None) -> None:
    def make(place: str) -> SqliteLaneSink:
        return SqliteLaneSink(str(tmp_path / f"{place}.db"), chunk_rows)

    report = conformance.check_lanes(
        make, lambda place: [tuple(row.values()) for row in make(place).rows("out")]
    )
    assert set(report.not_asked) == {"disturbed", "refused-rows"}
