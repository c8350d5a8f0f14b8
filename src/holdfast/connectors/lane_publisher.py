"""Shows epochs in a lane sink: deals the rows into lanes, has each written, and makes of the results what a
publisher gives back.

Always true: an epoch is published when every lane of it is WRITTEN or ALREADY there; a result is looked at
once for each lane; what is tried again is tried after a look at the terms, and after a wait that grows.
Never here: Spark. Where large epochs are written is passed in (`elsewhere`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

from holdfast.clock import Clock, SystemClock
from holdfast.connectors.contract import Publisher, StagedPart
from holdfast.connectors.lanes import (
    LaneMark,
    LaneRows,
    LaneWriter,
    OpenLanes,
    Outcome,
    Result,
    lane_of,
)
from holdfast.errors import (
    DefinitionError,
    HoldfastError,
    RestoreError,
    SinkFailed,
    Unavailable,
    first_line,
)

DONE = frozenset({Outcome.WRITTEN, Outcome.ALREADY})
AGAIN = frozenset({Outcome.BUSY, Outcome.FENCED, Outcome.UNAVAILABLE})
TRIES_MAX = 5
"""How often a lane is tried before the publishing fails, and is tried again as a whole later."""
PAUSE_SECONDS = 0.1
"""The wait before the second try; each later one is twice as long."""
ELSEWHERE_FROM_BYTES = 4 << 20
HERE_BELOW_BYTES = 1 << 20
"""Epochs as large as the first are written elsewhere from then on, until one is smaller than the second."""

Elsewhere = Callable[[Sequence[LaneRows]], Sequence["Result | Exception"]]
"""Writes lanes in other processes; gives one answer for each, in the same order."""


class LaneConnection:
    """A connection to a lane sink that is opened when it is needed, and again after every failure."""

    def __init__(self, writer: LaneWriter, term: int) -> None:
        self._writer, self._term = writer, term
        self._open: OpenLanes | None = None

    def write(self, rows: LaneRows) -> Result:
        """What became of the rows; a sink that cannot be reached is a result, too. Raises what the rows
        could not be loaded for, and what the sink's own code does wrong."""
        result = None
        try:
            result = self._opened().write(rows)
        except Unavailable as away:
            result = Result(Outcome.UNAVAILABLE, reason=first_line(away))
        finally:
            if result is None or result.outcome not in DONE:
                self.close()
        return result

    def marks(self) -> Mapping[int, LaneMark]:
        with self._closed_if_it_fails():
            return self._opened().marks()

    def begin(self, through: int) -> None:
        with self._closed_if_it_fails():
            self._opened().begin(through)

    def _opened(self) -> OpenLanes:
        """Unavailable: it cannot be opened, whatever the client says to that."""
        if self._open is None:
            try:
                self._open = self._writer.open(self._term)
            except HoldfastError:
                raise
            except Exception as cause:
                raise Unavailable(f"{type(cause).__name__}: {first_line(cause)}") from cause
        return self._open

    @contextlib.contextmanager
    def _closed_if_it_fails(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close it, if it is open. What a broken connection says to that is of no use."""
        lanes, self._open = self._open, None
        if lanes is not None:
            with contextlib.suppress(Exception):
                lanes.close()


class LanePublisher:
    """A publisher for any lane sink. As it is made by a sink it writes all lanes in its own process, one
    after the other; the engine has large epochs written elsewhere."""

    def __init__(
        self,
        writer: LaneWriter,
        *,
        name: str = "the sink",
        term: int = 0,
        clock: Clock | None = None,
        elsewhere: Elsewhere | None = None,
        look: Callable[[], None] = lambda: None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`look`: called before a lane is tried again; raises what makes that pointless, such as a newer
        leader. `say`: told of rows that the sink put where refused rows go."""
        self._writer, self._name, self._term = writer, name, term
        self._clock, self._elsewhere = clock or SystemClock(), elsewhere
        self._look, self._say, self._is_elsewhere = look, say, False
        self._here = LaneConnection(writer, term)
        self.shown: dict[int, LaneMark] | None = None
        """Lane -> the mark that its newest rows left. None: the sink is asked before the first epoch."""

    def published_through(self) -> int:
        """The epoch up to which every lane is known to be shown, also those without rows. Whether the rows up
        to a mark are all that its epoch has for the lane is not known here."""
        marks = self.marks()
        return min((mark.epoch - (mark.rows > 0) for mark in marks.values()), default=0)

    def marks(self) -> Mapping[int, LaneMark]:
        """What the sink itself says. Empty: it was never begun."""
        return self._here.marks()

    def begin(self, through: int) -> None:
        """Make the marks that are not there."""
        self._here.begin(through)

    def publish(self, epoch: int, parts: Sequence[StagedPart]) -> None:
        """Show the rows of an epoch, each lane once. Unavailable: some lanes could not be written; those that
        were are known to the sink."""
        self.write(epoch, parts)

    def write(self, epoch: int, parts: Sequence[StagedPart]) -> list[Result]:
        """As `publish`; gives the answers of the lanes that are written."""
        if self.shown is None:
            self.begin(0)
            self.shown = dict(self.marks())
        waiting, written = self._dealt(epoch, parts, self.shown), list[Result]()
        write = self._place(sum(part.bytes for part in parts))
        why = ""
        for tried in range(TRIES_MAX):
            if not waiting:
                break
            if tried:
                self._look()
                self._clock.sleep(PAUSE_SECONDS * 2 ** (tried - 1))
            answers = write(waiting)
            waiting, why = self._taken(waiting, answers)
            written += [each for each in answers if isinstance(each, Result) and each.outcome in DONE]
        if waiting:
            raise Unavailable(f"{self._name} did not take epoch {epoch} in {_lanes(waiting)}: {why}")
        return written

    def _dealt(
        self, epoch: int, parts: Sequence[StagedPart], shown: Mapping[int, LaneMark]
    ) -> list[LaneRows]:
        """The rows of an epoch, by lane: those of a lane in the order of their parts."""
        by_lane: dict[int, list[StagedPart]] = {}
        for part in sorted(parts, key=lambda part: part.part):
            if part.rows:
                by_lane.setdefault(lane_of(part.part), []).append(part)
        return [
            LaneRows(
                lane=lane,
                epoch=epoch,
                before=shown.get(lane, LaneMark(0)),
                rows=sum(part.rows for part in its),
                term=self._term,
                input=its[0].input,
                parts=tuple(its),
            )
            for lane, its in sorted(by_lane.items())
        ]

    def _place(self, size: int) -> Elsewhere:
        """Where an epoch of so many bytes is written: here, if it is small. An epoch between the two limits
        is written where the one before it was."""
        if self._elsewhere is None:
            return self._written_here
        self._is_elsewhere = size >= (HERE_BELOW_BYTES if self._is_elsewhere else ELSEWHERE_FROM_BYTES)
        if not self._is_elsewhere:
            return self._written_here
        # Two connections of one leader must not throw each other out.
        self._here.close()
        return self._elsewhere

    def _written_here(self, waiting: Sequence[LaneRows]) -> list[Result | Exception]:
        answers: list[Result | Exception] = []
        away: Result | None = None
        for rows in waiting:
            found = away or self._here.write(rows)
            # A server that does not answer is waited for once, and not by each lane.
            away = found if found.outcome is Outcome.UNAVAILABLE else None
            answers.append(found)
        return answers

    def _taken(
        self, waiting: Sequence[LaneRows], answers: Sequence[Result | Exception]
    ) -> tuple[list[LaneRows], str]:
        """Note what is shown by now; the lanes to try again, and why the first of them is. Raises what no
        further try would mend."""
        assert self.shown is not None
        found: dict[Outcome, list[tuple[LaneRows, Result]]] = {}
        failures: list[Exception] = []
        for rows, answer in zip(waiting, answers, strict=True):
            if isinstance(answer, Exception):
                failures.append(answer)
                continue
            found.setdefault(_judged(rows, answer), []).append((rows, answer))
            if answer.rejected:
                why = f" ({answer.reason})" if answer.reason else ""
                self._say(
                    f"{self._name} put {answer.rejected} rows of epoch {rows.epoch}, lane {rows.lane}, where "
                    f"refused rows go{why}"
                )
        done = {rows.lane: rows.end for outcome in DONE for rows, _ in found.get(outcome, ())}
        self.shown |= {lane: max(end, self.shown.get(lane, end)) for lane, end in done.items()}
        for failure in failures:
            raise failure
        self._refuse(found)
        again = [each for outcome in AGAIN for each in found.get(outcome, ())]
        why = next((f"{result.outcome.value} ({result.reason})" for _, result in again), "")
        return [rows for rows, _ in again], why

    def _refuse(self, found: Mapping[Outcome, list[tuple[LaneRows, Result]]]) -> None:
        for outcome in (Outcome.OTHER_ROWS, Outcome.WENT_BACK, Outcome.REFUSED):
            if outcome not in found:
                continue
            lanes, (rows, result) = [rows for rows, _ in found[outcome]], found[outcome][0]
            if outcome is Outcome.OTHER_ROWS:
                raise RestoreError(
                    f"{self._name} shows other rows of epoch {rows.epoch} in {_lanes(lanes)} than this "
                    "checkpoint has: the job went on from another copy since; restore a newer copy of the "
                    "checkpoint, or give the sink another uid"
                )
            if outcome is Outcome.WENT_BACK:
                raise SinkFailed(
                    f"{self._name} went back: in {_lanes(lanes)} it shows less than it had shown before "
                    f"epoch {rows.epoch} ({result.reason or result.mark}); the next start of the run shows "
                    "again what is still staged, or says what to do"
                )
            raise DefinitionError(
                f"in {_lanes(lanes)} rows are refused for good ({result.reason}); change what refuses them"
            )

    def close(self) -> None:
        self._here.close()


@runtime_checkable
class FilingPublisher(Publisher, Protocol):
    """A publisher that has the rows of large epochs written into files, lane by lane, and shows these by a
    step of its own."""

    def write_with(self, lanes: Callable[[LaneWriter], LanePublisher]) -> None:
        """Called before anything is published. `lanes`: what has lanes written by Spark's tasks, where there
        is much to write."""


def _judged(rows: LaneRows, result: Result) -> Outcome:
    """The outcome; of a sink that compares no inputs, whether the rows that are there are these."""
    mark = result.mark
    if result.outcome is Outcome.ALREADY and mark is not None and mark.epoch == rows.epoch:
        other = mark.input != rows.input and "" not in (mark.input, rows.input)
        return Outcome.OTHER_ROWS if other else result.outcome
    return result.outcome


def _lanes(waiting: Sequence[LaneRows]) -> str:
    numbers = ", ".join(str(rows.lane) for rows in waiting)
    return f"lane {numbers}" if len(waiting) == 1 else f"lanes {numbers}"
