"""What a source and a sink promise: the two contracts that every connector keeps.

A source plans slices on the driver and turns a slice into rows with Spark. A sink shows committed epochs.
Always true: one slice gives the same rows, in any process, any number of times; publishing an epoch again
changes nothing (for sinks that say `exactly_once`); a sink that cannot show some columns is asked before an
epoch is planned.
Never here: deciding when to plan, commit or publish (see runtime.epoch).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

Json = Any
"""A value that JSON can hold: it is stored in plans and commit records."""


@dataclass(frozen=True, slots=True)
class Slice:
    """What an epoch reads of one source: `start` is out (None: from the beginning), `end` is in.

    `rows` is exact or None (unknown before reading). `detail` is the source's own, kept with the plan (a file
    list, say). `notes` is what the source must remember from here on; all notes come back, in order, to
    `Source.reader`. `replaces_notes`: these take the place of all earlier ones, which keeps the memory
    of a source small that knows what it no longer needs.
    """

    start: Json
    end: Json
    rows: int | None = None
    detail: Json = None
    notes: tuple[Json, ...] = ()
    replaces_notes: bool = False


@dataclass(frozen=True, slots=True)
class Waiting:
    """What lies at a source and is not planned yet, where rows cannot be counted."""

    files: int
    bytes: int


@runtime_checkable
class Source(Protocol):
    """Where rows come from: a plain description, made before there is a Spark session. Never compared, never
    pickled."""

    @property
    def schema(self) -> str:
        """The columns as Spark SQL DDL (`user string, value long`). Every frame has exactly these."""

    @property
    def replayable(self) -> bool:
        """Whether a slice can be read again after a crash. If not, the job is at most once from here on."""

    def reader(self, notes: Sequence[Json]) -> SourceReader:
        """Open the source. Called on the driver, once per run (again after every restart).

        `notes` holds, in order, those of every slice up to the position that `next` is first called with:
        the committed ones, then those of recorded plans that are going to be followed.
        """


class SourceReader(Protocol):
    """An open source, on the driver. Used by one thread at a time."""

    def next(self, after: Json | None, max_rows: int | None, now_ms: int) -> Slice | None:
        """Plan the slice that follows `after` (None: the beginning), or None if nothing new is there now.

        Called once per epoch and while waiting for input, so it must be cheap and starts no Spark job. Raises
        Unavailable if the server is not there now: it is asked again, after a wait that grows. Called
        again with an older `after` when planned epochs were thrown away: it then plans from there again, not
        necessarily the same slices. `max_rows` is kept exactly where the source can, approximately where it
        says so.
        """

    def exhausted(self, after: Json | None) -> bool:
        """Whether nothing is left after this position, so that a run `until="exhausted"` may end. Asked only
        after `next` gave None. Unbounded sources answer False; a directory answers for the files there
        now."""

    def frame(self, spark: SparkSession, slice: Slice) -> DataFrame:
        """The rows of a slice planned by this or an earlier reader.

        May be called several times for one slice, in any order of slices. Checks on the driver, before any
        Spark job runs, that the input is still what was planned. Raises InputVanished if not, naming source
        and range, and Unavailable if the server is not there now. Changes nothing of what `next` plans.
        """

    def lag(self, after: Json | None) -> int | None:
        """How many rows are waiting after this position, if that is known cheaply."""


# What a source or a reader may have besides. Each is asked for only where it is there; nothing is inherited.


@runtime_checkable
class CheckedSource(Protocol):
    """A source that knows before Spark starts that it cannot be read."""

    def check(self) -> None:
        """Called when a run is started, before Spark is. Raises DefinitionError: the run does not start."""


@runtime_checkable
class CheckedSink(Protocol):
    """A sink that knows before Spark starts that nothing can be shown there."""

    def check(self) -> None:
        """Called when a run is started, before Spark is. Raises DefinitionError: the run does not start.
        Writes nothing."""


@runtime_checkable
class ForgettingSource(Protocol):
    """A source that may let go of rows by itself, whether they are still needed or not. Rows that a part has
    committed are not read again, unless its state is kept in its input alone (`hf.UpstreamBackup`): there
    such a source is refused."""

    @property
    def forgets(self) -> bool:
        """Whether it does."""


@runtime_checkable
class MissingSource(Protocol):
    """A source that may never read some rows, where the user has accepted that: `holdfast guarantees`
    says it, and it is not refused."""

    @property
    def misses(self) -> str | None:
        """Which rows, in words that end a sentence; None: it misses none."""


@runtime_checkable
class VerifyingReader(Protocol):
    """A reader of input that may be changed while it is being read."""

    def verify(self, slice: Slice) -> None:
        """Called when the Spark jobs of an epoch are done and before it is committed (at most once: before
        its commit, and again after its jobs). Raises InputVanished if the input is not what it was when
        `frame` looked: nothing of the epoch counts then.
        """


@dataclass(frozen=True, slots=True)
class Pieces:
    """Rows as tasks read them by themselves. `rows`: how many there are, if that is known. `read`: the rows
    of a piece by its number, from 0, with the columns that Spark would hand to Python in a session
    whose time zone is UTC; the same every time. It is sent to tasks."""

    count: int
    rows: int | None
    read: Callable[[int], Iterable[pa.RecordBatch]]


@runtime_checkable
class PiecesReader(Protocol):
    """A reader whose rows tasks can read in Python: where nothing but a key stands between them and an
    operator they need not become Spark's."""

    def pieces(self, spark: SparkSession, slice: Slice) -> Pieces | None:
        """The rows of a slice that `frame` has; None: only Spark can read them. Checks and raises as `frame`
        does. A task that cannot read a piece fails, and `frame` is asked."""


@runtime_checkable
class EndingReader(Protocol):
    """A reader that can be told to plan what is there now and no more: what `stop --drain` reads up to.

    Without it, a drain reads the rows that `lag` counts, or one more slice if that is not known.
    """

    def end_at(self, after: Json | None, now_ms: int, end: Json | None) -> Json:
        """From now on `next` plans nothing beyond `end`; gives `end` back. None: fix it now, at what is there
        after `after`.

        Called once per reader, when a drain was asked for: with None the first time, and with the end that
        was fixed then after a restart within the process, or by another member of a set of replicas.
        """


@runtime_checkable
class FollowingReader(Protocol):
    """A reader that remembers more than the position that `next` is given, and can be read by a part with
    active replicas: other processes plan slices of it, too."""

    def follow(self, slice: Slice) -> None:
        """Another reader has planned this slice, and it counts: it takes the place of what this one planned
        after its start. `next` is called with its end."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """Some rows of a slice, and when they arrived: the first and the last of them, in ms since 1970; evenly
    in between, as far as is known. `share`: how many they are against the others of the slice, by rows or by
    bytes."""

    share: float
    first_ms: float
    last_ms: float


@runtime_checkable
class DatedReader(Protocol):
    """A reader that knows when rows arrived: from then on they could be read. Latency is counted from
    there."""

    def arrived(self, slice: Slice) -> Sequence[Arrived]:
        """When the rows of a slice arrived, in pieces; none: it is not known. Called once the Spark jobs of
        its epoch are done. Asks nobody."""


@runtime_checkable
class WaitingReader(Protocol):
    """A reader that knows how much is waiting, if not how many rows."""

    def waiting(self, after: Json | None) -> Waiting | None:
        """What is not planned yet, as far as was seen when `next` last looked; None: it has not looked yet,
        as while recorded plans are followed. Called after every epoch and while waiting for input."""


@runtime_checkable
class PartitionedSource(Protocol):
    """A source in partitions that move on through time each at its own speed, as those of a topic do: event
    time waits for the slowest. Its readers are `PartitionedReader`s."""

    @property
    def partition_column(self) -> str:
        """The column of its rows that names their partition."""


@runtime_checkable
class PartitionedReader(Protocol):
    """A reader that knows the partitions of its source."""

    def partitions(self, slice: Slice) -> Mapping[str, bool]:
        """Every partition that there was when a slice was planned, as the partition column gives it as text,
        and whether it had rows to be read then: in the slice, or waiting after it. One that had none for a
        while is idle. The same every time. Starts no Spark job."""


@dataclass(frozen=True, slots=True)
class LogBatch:
    """A batch of a durable log. `number`: batches are numbered 1, 2, 3 and so on, whoever wrote them;
    `writer` and `turn`: who wrote it, and which of its batches it is: turns grow. `received_ms`: when it was
    appended, in ms since 1970; 0: not known."""

    number: int
    writer: str
    turn: int
    rows: int
    received_ms: int = field(default=0, compare=False)


class DurableLog(Protocol):
    """A log in checkpoint storage, for what cannot be read again: what was received is appended, acknowledged
    to its sender when that returned, and read from here, again and again. Several processes may append. Used
    by several threads at once."""

    def append(self, rows: pa.RecordBatch) -> LogBatch:
        """Make rows durable. Raises RetryableError where that failed or cannot be known: then nothing may be
        acknowledged; the rows may be in the log all the same, as this turn of the writer."""

    def after(self, number: int) -> Sequence[LogBatch]:
        """The batches after a number that are durable as far as was seen, in order, without a gap. Raises
        InputVanished if the next one is gone."""

    def look(self) -> None:
        """See what others have appended since."""

    def loader(self) -> Callable[[int], pa.RecordBatch]:
        """What reads a batch by its number, anywhere: it may be sent to Spark's tasks. CorruptionError."""

    def trim(self, through: int) -> None:
        """Nothing needs the batches up to this one any more."""


@runtime_checkable
class LoggedSource(Protocol):
    """A source that cannot be read again by itself, and is read by way of a log."""

    def logged_reader(self, notes: Sequence[Json], log: DurableLog) -> SourceReader:
        """As `reader`, which is not called then; with the log that belongs to the source's uid."""


@runtime_checkable
class RepeatingSource(Protocol):
    """A source to which the same row may be given more than once."""

    @property
    def repeats(self) -> str:
        """Why, in a few words; empty: it cannot. `told_apart_by`: what de-duplicates them then."""

    @property
    def told_apart_by(self) -> str | None:
        """The column that is the same in all copies of a row, and in no other; None: there is none."""


@runtime_checkable
class ClosingReader(Protocol):
    """A reader that holds something: a connection, a thread."""

    def close(self) -> None:
        """Called when leading ends, also after a failure. Raises nothing."""


MALFORMED = "holdfast: a row does not fit the schema of its source"
"""What a Spark job over the `frame` of a SiftingReader fails with, if it meets such a row."""


@dataclass(frozen=True, slots=True)
class MalformedRow:
    """A row that cannot be parsed, or does not fit the schema. `file`: its path, for a person; `name`: as the
    plan names it (empty: it cannot be given up by itself); `line` counts from 1 (None: the row is not a line
    of its own). Where rows lie in no files, these are what a PlacedReader says."""

    file: str
    name: str
    line: int | None
    row: str
    reason: str


@runtime_checkable
class SiftingSource(Protocol):
    """A source in which single rows may be malformed. If `sifts`, its readers are `SiftingReader`s."""

    @property
    def sifts(self) -> bool:
        """Whether such rows can be told apart and set aside."""


@runtime_checkable
class SiftingReader(Protocol):
    """A reader that tells malformed rows apart. A job over its `frame` fails with MALFORMED if there is
    one."""

    def sifted(self, spark: SparkSession, slice: Slice) -> Sifted:
        """`frame` without its malformed rows. Called instead of it where they are set aside, by the same
        rules."""

    def malformed(self, spark: SparkSession, slice: Slice) -> DataFrame:
        """The malformed rows of a slice: `file string, line long, row string, reason string`; the same every
        time."""

    def first_malformed(self, spark: SparkSession, slice: Slice) -> MalformedRow | None:
        """One malformed row of a slice, by Spark jobs of its own. Called when a job over `frame` failed."""


@runtime_checkable
class PlacedReader(Protocol):
    """A SiftingReader whose rows lie in no files."""

    @property
    def place_words(self) -> tuple[str, str]:
        """What `file` and `line` of its malformed rows are, as a person calls them: partition and offset."""


@dataclass(frozen=True, slots=True)
class Sifted:
    """Rows that fit. `observed` tells, once a job over all of `rows` is done, how many rows it read and how
    many were malformed; it may wait without end where Spark left the job out."""

    rows: DataFrame
    observed: Callable[[], tuple[int, int]]


@runtime_checkable
class DriftingReader(Protocol):
    """A reader that notices columns which its source does not declare."""

    def undeclared(self) -> dict[str, str]:
        """Such columns, as far as they were noticed, and where each was seen first. Called after every
        `next`."""


@runtime_checkable
class TellingReader(Protocol):
    """A reader that has things to say to a person."""

    def news(self) -> Sequence[str]:
        """What to say now; each thing is given once. Called after every `next`."""


@runtime_checkable
class AcknowledgingReader(Protocol):
    """A reader that wants to know how far the job has committed, to tell monitors of its system."""

    def committed(self, position: Json) -> None:
        """Called between two epochs, by the thread that calls `next`, after a commit that moved the position;
        with that of the newest commit, so that some in between may be left out, and once more at the end of a
        run in good order. Recovery never depends on it: what it raises is said, and changes nothing. It must
        not wait for long, because no epoch is planned meanwhile."""


@runtime_checkable
class TrimmingReader(Protocol):
    """A reader of a system that may let go of what is not read again, where its source was told to."""

    def released(self, position: Json) -> None:
        """Nothing that is retained needs what comes at or before `position`: no commit that the job could go
        back to, and no plan, reads it again. Savepoints stand alone, and are not counted: a job that starts
        from one needs the input since then.

        Called as `committed` is, only ever with a later position, by a leader that is the only one as far as
        it knows. What it raises is said, and changes nothing. Do nothing unless the user has asked for it."""


@runtime_checkable
class MonitoredReader(Protocol):
    """A reader that knows how its source fares."""

    def health(self) -> str:
        """A short text for a person: stalled, reconnecting, held up by whom; empty if all is well. Called
        after every `next` and while waiting for input; asks nobody."""


@dataclass(frozen=True, slots=True)
class StagedPart:
    """One committed piece of an epoch's output. `load` reads (and verifies) it from storage, each time it is
    called. `input` names the slices that the epoch read: the same for all its parts; empty if not known.
    `bytes` is how large it is in storage, compressed; 0 if not known."""

    part: int
    rows: int
    load: Callable[[], pa.Table]
    input: str = ""
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Mark:
    """What a sink remembers of the newest epoch with rows that it shows (0: none so far), and `input` of the
    parts that it was given."""

    epoch: int
    input: str = ""


@runtime_checkable
class Sink(Protocol):
    """Where rows go: a plain description, made before there is a Spark session."""

    @property
    def exactly_once(self) -> bool:
        """Whether publishing one epoch twice shows its rows once. If not, the job is at least once here."""

    def publisher(self, job: str, uid: str) -> Publisher:
        """Open the sink for one sink node of a job. Called on the driver, once per run (again after every
        restart)."""


@runtime_checkable
class SelectiveSink(Protocol):
    """What a sink has besides, if it can show some columns and not others. A sink without it takes any."""

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise DefinitionError if rows of these columns can never be shown, naming column, type and remedy
        (after the last `; `). Columns that it accepts must be shown whatever values they hold: once an epoch
        is committed, a sink that fails on it holds up all that follow.

        Called on the driver as soon as the columns are known, before any epoch is planned: before Spark
        starts, and again with Spark's own word on them. May be called any number of times, also by commands
        that only look. Touches nothing. A timestamp's time zone is UTC here, and may be the Spark session's
        in the rows.
        """


@runtime_checkable
class ReplacingSink(Protocol):
    """What a sink has besides, if a row takes the place of the one with the same key there. Rows of one key
    in one epoch must then come one after the other, or be told apart: refused where neither is so."""

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that name a row; empty: rows are added."""

    @property
    def order_by(self) -> str | None:
        """The column by which the highest row of a key stays; None: the last one does."""


class Publisher(Protocol):
    """An open sink, on the driver. Used by one thread at a time; another process may publish at the same
    moment."""

    def published_through(self) -> int:
        """The newest epoch that the sink itself shows; 0: none, or it cannot say. May be lower than the
        truth, never higher. Asked once per start and restart, before anything is planned: epochs that a sink
        shows and the checkpoint lacks are replayed with the slices they had, or the run is refused."""

    def publish(self, epoch: int, parts: Sequence[StagedPart]) -> None:
        """Make one committed epoch visible, whole, once.

        Called in order of epochs and only after the commit. Called again for the same epoch after a crash, or
        by two publishers at once: it must then change nothing. Not called for an epoch that was thrown away;
        may be called with no parts, or with parts of no rows. Raises Unavailable if the server is not there
        now, whether or not the epoch got there: it is called again, after a wait that grows.
        """

    def close(self) -> None:
        """Let go of what is held. Called at the end of a run, also of one that failed; publishes nothing."""


@runtime_checkable
class RememberingPublisher(Publisher, Protocol):
    """A publisher whose sink keeps a durable mark of its own, so that what it has shown may be taken away.

    Optional. With it, output that was moved away is not shown again, a sink that was emptied or that writes
    elsewhere now is noticed, and a checkpoint that does not know what the sink shows is recognised.
    """

    def mark(self) -> Mark | None:
        """What the sink remembers; None: `begin` was never called here for this job and uid. Asked once,
        instead of `published_through`; an epoch that was being shown when its publisher died is shown
        first."""

    def begin(self, through: int) -> None:
        """Called when the run can no longer be refused, and before it shows anything; again if that raised.
        At a start that is before anything is planned; where a job goes on, by the thread that publishes. From
        here on `mark` is never None again, and never names an epoch before `through`: up to there the sink
        has shown its epochs elsewhere, or was not a part of the job."""


@runtime_checkable
class KeepingPublisher(RememberingPublisher, Protocol):
    """A publisher whose sink keeps its rows and its mark together, as a table does: a mark that is gone, or
    lower than it was, means that rows are lost with it, and the run is refused (`SinkWentBack`)."""

    @property
    def keeps_rows(self) -> bool:
        """Whether it does."""
