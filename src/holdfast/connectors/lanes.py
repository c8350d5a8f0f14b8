"""Sinks that are written from Spark's tasks: what a lane is, and what such a sink promises.

The rows that an epoch has for a sink are dealt into lanes. A lane is written by one task at a time if all is
well, and by several at once if not: a task that was given up may wake up at any later time (a late twin). The
sink itself holds, for every lane, a mark: how far it shows that lane. Checking the mark and writing the rows
are one atomic step in the sink. That step is all that keeps rows from being shown twice.

    driver      sink.lane_writer(job, uid)          a plain value; it is pickled into tasks
                writer.open(term).begin(through)    the marks exist before the first epoch
    a task      open = writer.open(term)            once for all lanes that the task has
                open.write(rows)                    once for each lane; gives a Result, whatever happened
                open.close()
    driver      one Result for each lane; what has to be tried again is tried again, after a look at the terms

Always true: the rows of a lane in an epoch, and their order, are the same in every attempt, in every process,
for good (the first commit that names them counts); all lanes of an epoch are written before any lane of the
next one begins; nothing is written before the epoch is committed (for sinks that say `exactly_once`).
Never here: Spark, and the decision where and when a lane is written (see runtime.epoch.lanes).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from holdfast.connectors.contract import Sink, StagedPart

if TYPE_CHECKING:
    import pyarrow as pa

LANES = 16
"""How many lanes a sink has. Part of the stored format: marks in sinks are kept by the number of their lane.
It has nothing to do with Spark's partitions; with fewer parts than lanes, some lanes have no rows."""


def lane_of(part: int) -> int:
    """The lane of a staged part: whole parts are dealt, by their numbers. The same answer for good."""
    return part % LANES


@dataclass(frozen=True, order=True, slots=True)
class LaneMark:
    """How far a sink shows a lane: all rows of epochs before `epoch`, and the first `rows` rows of `epoch`.

    Marks are ordered: by epoch, then by rows. A mark may name an epoch of which the lane has no rows (`begin`
    makes such marks, with 0 rows). `input` is that of the rows which the mark came with (LaneRows.input); it
    tells copies of a checkpoint apart, and is not a part of the order.
    """

    epoch: int
    rows: int = 0
    input: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class LaneRows:
    """All rows of one lane in one committed epoch: what is given to `write`. A plain value, pickled into
    tasks: it names the staged rows and does not hold them.

    `rows` (never 0) is how many there are. `before` is the mark that the newest earlier rows of this lane
    left: a sink whose mark is lower has lost rows. `term` is the number under which the leader leads: higher
    is newer, and the rows do not depend on it; it serves to end what a dead leader left open. `input` names
    the slices that the epoch read (empty: not known); it is kept with the mark.
    """

    lane: int
    epoch: int
    before: LaneMark
    rows: int
    term: int
    input: str
    parts: tuple[StagedPart, ...]

    @property
    def end(self) -> LaneMark:
        """The mark that writing all of these rows leaves."""
        return LaneMark(self.epoch, self.rows, self.input)

    def load(self, start: int = 0) -> Iterator[pa.Table]:
        """The rows from `start` on (0: all), in their order, as Arrow tables of one or more rows.

        Each table is read from storage when it is asked for, and verified; raises CorruptionError or
        ObjectMissing, which `write` lets through. Ask for all of them, and turn them into what the sink
        takes, before you begin a transaction or take a lock: storage may be slow. How the rows are cut into
        tables says nothing: cut them as the sink likes.
        """
        for part in self.parts:
            if start < part.rows:
                table = part.load()
                yield table.slice(start) if start else table
            start = max(0, start - part.rows)


class Outcome(Enum):
    """What became of the rows of a lane."""

    WRITTEN = "written"
    """The rows are shown, and the mark is at their end."""
    ALREADY = "already there"
    """The mark was at their end, or beyond: nothing was changed."""
    BUSY = "busy"
    """Another writer is at this lane: nothing was changed, as far as is known."""
    FENCED = "fenced"
    """Another writer has taken the lane over: nothing was changed, as far as is known."""
    UNAVAILABLE = "unavailable"
    """The sink cannot be reached, or gave no answer: the rows may or may not be shown."""
    WENT_BACK = "went back"
    """The mark is lower than `before`, or there is none: the sink has lost rows. Nothing was changed."""
    OTHER_ROWS = "other rows"
    """The sink shows other rows of this epoch in this lane (another input): nothing was changed."""
    REFUSED = "refused"
    """The sink can never take some of these rows (a constraint, a value that it cannot hold), and has no
    place where refused rows are put. Rows before the mark are shown. `reason` says which row and why."""


@dataclass(frozen=True, slots=True)
class Result:
    """What `write` answers. `mark`: the lane's mark afterwards, where it is known. `rejected`: how many of
    the rows it put where refused rows go instead of showing them. `reason`: one line for a person, needed
    where the outcome is not WRITTEN or ALREADY; never a password, never a whole row. `files`: where the rows
    are in files that a step of the publisher's shows later, what it has to know of each."""

    outcome: Outcome
    mark: LaneMark | None = None
    reason: str = ""
    rejected: int = 0
    files: tuple[str, ...] = ()


def continues(mark: LaneMark | None, rows: LaneRows) -> int | Outcome:
    """The rule of every lane sink: from which row on `rows` are to be written where the lane's mark is
    `mark`, or why nothing of them may be.

    Rows apply only where they continue exactly: `before <= mark < end`. Call it inside the atomic step, with
    the mark that is locked there; a sink that decides in SQL or in a script decides the same.
    """
    if mark is None or mark < rows.before:
        return Outcome.WENT_BACK
    if mark.epoch != rows.epoch:
        return 0 if mark.epoch < rows.epoch else Outcome.ALREADY
    other = mark.input != rows.input and "" not in (mark.input, rows.input)
    if other or mark.rows > rows.rows:
        return Outcome.OTHER_ROWS
    return mark.rows if mark.rows < rows.rows else Outcome.ALREADY


class OpenLanes(Protocol):
    """The lanes of one sink, open in one process: a connection. Used by one thread at a time, on
    the driver not always by the same."""

    def begin(self, through: int) -> None:
        """Make the mark `LaneMark(through)` for every lane (0 to LANES - 1) that has none; leave those that
        are there. Called on the driver, once per run, when the run can no longer be refused and before
        anything is planned; another process may do the same at once. Not called where `exactly_once` is
        False."""

    def marks(self) -> Mapping[int, LaneMark]:
        """The mark of every lane that has one; empty: `begin` was never called here for this job and uid.

        Never more than is shown, and durable: what was said here once is not taken back by a crash of the
        sink. A write of which the outcome was unknown, and which is still under way, is waited for or ended
        first, for some seconds at most. Changes no mark. Asked on the driver once per start and restart, and,
        under term 0, by `holdfast check` where no run lives. Raises if the sink cannot be reached. Not called
        where `exactly_once` is False.
        """

    def write(self, rows: LaneRows) -> Result:
        """Show the rows of one lane in one epoch, if they continue there (see `continues`).

        Whole or not at all (`atomic` = "lane"), or as a growing prefix of the rows ("chunk"): with each
        chunk, in the same atomic step, the mark moves to `LaneMark(epoch, rows done, input)`. Called inside
        a Spark task, or on the driver. May run at the same time as other calls for other lanes, and, because
        Spark runs tasks twice and tasks wake up late, as another call for the same lane and the same or other
        epochs: then the rows are shown once all the same, in order.

        What happens in the sink is a Result and no exception: a task that fails is run again by Spark, at
        once, against the sink or against a task that still runs. Comes back within seconds when it can do
        nothing (no waiting for a lock, for a server, or for another writer to end); takes as long as writing
        takes when it writes. Whatever is raised nevertheless (also by `load`) fails the publishing, not the
        task. After a Result other than WRITTEN or ALREADY the connection is closed and opened again before
        the next call.
        """

    def close(self) -> None:
        """Let go of what is held, also in the middle of a failure. Shows nothing."""


class LaneWriter(Protocol):
    """One sink of one job, as a plain value that pickle takes and that is equal in every process. Holds no
    connection, no client and no password: Spark writes it down (a password is resolved where the connection
    is made)."""

    def open(self, term: int) -> OpenLanes:
        """Connect. Called on the driver, inside tasks and by `holdfast check`, any number of times; raises if
        the sink cannot be reached, within seconds. Makes nothing: that is for `begin` to do. Does not take
        the place of another connection by itself: that is for `write`, in the lane that it writes."""


Atomic = Literal["epoch", "lane", "chunk"]
"""What a reader of a sink sees whole or not at all. `epoch`: all rows of an epoch. `lane`: those of a lane in
an epoch; a reader may see some lanes of it and not the others, for a moment or until a failure is mended.
`chunk`: some rows of a lane at a time, in order."""


@runtime_checkable
class LaneSink(Sink, Protocol):
    """A sink that can be written from Spark's tasks: its rows do not pass through the driver.

    Its `publisher` is asked for only where `lane_writer` gives None, and by tools that know nothing of lanes:
    `LanePublisher(self.lane_writer(job, uid))` (holdfast.connectors.lane_publisher) is one.
    """

    @property
    def atomic(self) -> Atomic:
        """What a reader sees whole. Shown to people."""

    @property
    def shared(self) -> bool:
        """Whether several processes may write one lane at the same moment and all come to an end (each by
        WRITTEN or ALREADY, after BUSY at most). False: they throw each other out (FENCED); such a sink cannot
        be a part's that runs as active replicas."""

    def lane_writer(self, job: str, uid: str) -> LaneWriter | None:
        """The writer for one sink node of a job; None: as it is set up, this sink is written on the driver,
        by its `publisher`. `job` and `uid` together name the marks: `job` holds the checkpoint's identity.
        Connects to nothing. Called on the driver, once per run (again after every restart)."""
