"""What becomes of the results of lanes: tried again, refused, or an epoch that is shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pyarrow as pa
import pytest

from holdfast.connectors import lane_publisher
from holdfast.connectors.contract import StagedPart
from holdfast.connectors.lane_publisher import PAUSE_SECONDS, LanePublisher
from holdfast.connectors.lanes import LANES, LaneMark, LaneRows, Outcome, Result, continues
from holdfast.errors import (
    CorruptionError,
    DefinitionError,
    FencedOut,
    RestoreError,
    SinkFailed,
    Unavailable,
)
from holdfast.testing import ManualClock


@dataclass
class Lanes:
    """A sink in memory that first gives the answers in `told`."""

    told: list[Result | Exception] = field(default_factory=list)
    begun: dict[int, LaneMark] = field(default_factory=dict)
    calls: list[LaneRows] = field(default_factory=list)
    opened: int = 0
    closed: int = 0
    away: Exception | None = None

    def open(self, term: int) -> Lanes:
        if self.away is not None:
            raise self.away
        self.opened += 1
        return self

    def begin(self, through: int) -> None:
        self.begun = {lane: LaneMark(through) for lane in range(LANES)} | self.begun

    def marks(self) -> Mapping[int, LaneMark]:
        return self.begun

    def write(self, rows: LaneRows) -> Result:
        self.calls.append(rows)
        if self.told:
            answer = self.told.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer
        start = continues(self.begun.get(rows.lane), rows)
        if isinstance(start, Outcome):
            return Result(start, self.begun.get(rows.lane))
        self.begun[rows.lane] = rows.end
        return Result(Outcome.WRITTEN, rows.end)

    def close(self) -> None:
        self.closed += 1


def part(number: int, rows: int = 2, bytes: int = 0, input: str = "") -> StagedPart:
    return StagedPart(number, rows, lambda: pa.table({"n": range(rows)}), input, bytes)


def publisher(lanes: Lanes, look: Callable[[], None] = lambda: None) -> LanePublisher:
    return LanePublisher(lanes, name="sink 'out'", clock=ManualClock(), look=look)


def test_an_epoch_is_dealt_into_lanes_that_follow_one_another() -> None:
    lanes = Lanes()
    out = publisher(lanes)
    out.publish(1, [part(17, 3), part(1, 2), part(4, 1), part(5, 0)])
    out.publish(3, [part(1, 4)])
    found = [
        (rows.lane, rows.epoch, rows.before, rows.rows, [p.part for p in rows.parts]) for rows in lanes.calls
    ]
    assert found == [
        (1, 1, LaneMark(0), 5, [1, 17]),
        (4, 1, LaneMark(0), 1, [4]),
        (1, 3, LaneMark(1, 5), 4, [1]),
    ]
    assert out.shown is not None
    assert (out.shown[1], out.shown[4]) == (LaneMark(3, 4), LaneMark(1, 1))
    assert lanes.opened == 1, "the connection is kept"


@pytest.mark.parametrize("outcome", [Outcome.BUSY, Outcome.FENCED])
def test_what_may_pass_is_tried_again_after_a_look_at_the_terms(outcome: Outcome) -> None:
    looked: list[int] = []
    lanes = Lanes([Result(outcome, reason="a twin")])
    publisher(lanes, lambda: looked.append(len(lanes.calls))).publish(1, [part(0), part(1)])
    assert [rows.lane for rows in lanes.calls] == [0, 1, 0], "only the lane that was not written"
    assert looked == [2]
    assert lanes.opened == 2, "a connection that failed is not used again"


def test_a_leader_that_was_superseded_tries_no_more() -> None:
    def look() -> None:
        raise FencedOut(1, 2, "terms/2")

    lanes = Lanes([Result(Outcome.FENCED, reason="another one")])
    with pytest.raises(FencedOut):
        publisher(lanes, look).publish(1, [part(0)])
    assert len(lanes.calls) == 1


def test_a_sink_that_stays_away_is_said_to_be_after_some_tries() -> None:
    lanes = Lanes([Result(Outcome.UNAVAILABLE, reason="no route")] * 99)
    with pytest.raises(Unavailable, match=r"sink 'out' did not take epoch 4 in lane 2: unavailable \(no rou"):
        publisher(lanes).publish(4, [part(2)])
    assert len(lanes.calls) == lane_publisher.TRIES_MAX


def test_each_try_waits_longer_than_the_one_before() -> None:
    """Without a wait a lane is tried five times against the very twin that it met."""
    clock, at = ManualClock(), list[float]()
    lanes = Lanes([Result(Outcome.BUSY, reason="a twin")] * 4)
    out = LanePublisher(lanes, clock=clock, look=lambda: at.append(clock.monotonic()))
    out.publish(1, [part(0)])
    waits = [late - early for early, late in pairwise([*at, clock.monotonic()])]
    assert waits == pytest.approx([PAUSE_SECONDS * 2**n for n in range(4)])


@pytest.mark.parametrize("error", [ConnectionRefusedError("refused"), Unavailable("refused")])
def test_a_sink_that_cannot_be_opened_is_unavailable(error: Exception) -> None:
    lanes = Lanes()
    out = publisher(lanes)
    out.publish(1, [part(0)])
    out.close()
    lanes.away = error
    with pytest.raises(Unavailable, match="refused"):
        out.publish(2, [part(0)])


def test_a_lane_that_was_written_is_known_though_another_failed() -> None:
    lanes = Lanes([Result(Outcome.WRITTEN, LaneMark(1, 2)), CorruptionError("a staged file is damaged")])
    out = publisher(lanes)
    with pytest.raises(CorruptionError):
        out.publish(1, [part(0), part(1)])
    assert lanes.closed == 1


@pytest.mark.parametrize(
    ("result", "error", "text"),
    [
        (Result(Outcome.WENT_BACK, LaneMark(1, 1)), SinkFailed, "sink 'out' went back: in lane 0"),
        (Result(Outcome.OTHER_ROWS, LaneMark(2, 2, "x")), RestoreError, "other rows of epoch 2 in lane 0"),
        (Result(Outcome.ALREADY, LaneMark(2, 2, "x")), RestoreError, "other rows of epoch 2 in lane 0"),
        (Result(Outcome.REFUSED, reason="row 1: NUL"), DefinitionError, r"refused for good \(row 1: NUL\)"),
    ],
)
def test_what_no_try_mends_is_raised(result: Result, error: type[Exception], text: str) -> None:
    lanes = Lanes([result])
    with pytest.raises(error, match=text):
        publisher(lanes).publish(2, [part(0, input="i")])
    assert len(lanes.calls) == 1


def test_rows_that_were_put_aside_by_the_sink_are_said() -> None:
    said: list[str] = []
    lanes = Lanes([Result(Outcome.WRITTEN, LaneMark(1, 2), rejected=1, reason="NUL in text")])
    LanePublisher(lanes, name="sink 'out'", clock=ManualClock(), say=said.append).publish(1, [part(3)])
    assert said == ["sink 'out' put 1 rows of epoch 1, lane 3, where refused rows go (NUL in text)"]


def test_large_epochs_are_written_elsewhere_until_one_is_small() -> None:
    lanes = Lanes()
    places: list[str] = []

    def elsewhere(waiting: Sequence[LaneRows]) -> list[Result | Exception]:
        assert lanes.closed == lanes.opened, "no connection of our own meets those of tasks"
        places.append("elsewhere")
        return [lanes.write(rows) for rows in waiting]

    out = LanePublisher(lanes, clock=ManualClock(), elsewhere=elsewhere)
    large, small = lane_publisher.ELSEWHERE_FROM_BYTES, lane_publisher.HERE_BELOW_BYTES
    sizes = [small, large, large - 1, small, small - 1, large - 1, large]
    for epoch, size in enumerate(sizes, start=1):
        before = len(places)
        out.publish(epoch, [part(0, bytes=size)])
        places += ["here"] if len(places) == before else []
    assert places == ["here", "elsewhere", "elsewhere", "elsewhere", "here", "here", "elsewhere"]


def test_what_is_known_of_a_lane_never_shrinks() -> None:
    lanes = Lanes()
    lanes.begin(0)
    lanes.begun[0] = LaneMark(7, 4)
    out = publisher(lanes)
    out.shown = {0: LaneMark(7, 4)}
    out.publish(5, [part(0, 3)])
    assert out.shown == {0: LaneMark(7, 4)}


def test_a_server_that_does_not_answer_is_waited_for_once_in_a_round() -> None:
    """Each of 16 lanes would wait for a connection of its own, before anybody is told that it is away."""
    lanes = Lanes(told=[Result(Outcome.UNAVAILABLE, reason="no answer")])
    publisher(lanes).publish(1, [part(number) for number in range(LANES)])
    assert [rows.lane for rows in lanes.calls] == [0, *range(LANES)]
    assert lanes.opened == 2, "a connection that failed is not used again"


def test_an_epoch_that_a_lane_shows_by_half_is_not_said_to_be_published() -> None:
    """By this word a member of a set of replicas passes over an epoch that it failed to show."""
    lanes = Lanes(begun={lane: LaneMark(4, 2) for lane in range(LANES)})
    assert publisher(lanes).published_through() == 3
    lanes.begun[7] = LaneMark(2)
    assert publisher(lanes).published_through() == 2
    assert publisher(Lanes()).published_through() == 0
