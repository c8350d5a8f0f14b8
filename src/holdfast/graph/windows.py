"""Windows: which rows of a key belong together, and what is made of them.

Windows over time are cut into *panes*, of which every window is a whole number, so that a row is added to one
pane however many windows it is in. Times are µs since 1970; a window has its start and not its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import gcd

import pyarrow as pa

from holdfast.clock import duration_ms
from holdfast.errors import DefinitionError
from holdfast.graph.aggregates import Aggregation
from holdfast.graph.window_functions import Reduction, WindowProcess
from holdfast.state.encoding.layout import TIME_AND_NUMBER, TIME_TYPE, StateField, StateKind
from holdfast.state.files.evolution import LATENESS_KEPT, WINDOW_KEPT

PANES, EMISSIONS, SESSIONS, CLOSINGS, COUNTED = "panes", "emissions", "sessions", "closings", "counted"
"""The states of operators over windows: what is kept of each pane, and which keys have early results due; the
sessions of each key, and when they close; what has been counted of each key."""
SESSION_START, SESSION_LAST, SESSION_EMITTED = "__start_us", "__last_us", "__emitted"
COUNTED_ROWS = "__rows"
OWN_FIELDS = {SESSIONS: (SESSION_START, SESSION_LAST, SESSION_EMITTED), COUNTED: (COUNTED_ROWS,)}
"""What a state holds besides accumulators: the times of a session's first and last row, and the epoch that
last emitted it with these (0: none did); how many rows a key has had."""
REVISION = "revision"
"""The epoch that a row of a window comes from, and that last changed a pane."""
WINDOW_START, WINDOW_END = WINDOW_COLUMNS = ("window_start", "window_end")
WINDOW_NUMBER, DELETED = "window", "deleted"
PANES_PER_WINDOW_MAX = 10_000


@dataclass(frozen=True)
class TimeWindow:
    """Windows of `size`, one beginning every `every`, counted from 1970 plus `offset`."""

    size: str
    every: str
    offset: str = "0s"

    @cached_property
    def size_us(self) -> int:
        return duration_ms(self.size) * 1_000

    @cached_property
    def every_us(self) -> int:
        return duration_ms(self.every) * 1_000

    @cached_property
    def offset_us(self) -> int:
        sign = -1 if self.offset.lstrip().startswith("-") else 1
        return sign * duration_ms(self.offset.lstrip().removeprefix("-")) * 1_000 % self.every_us

    @cached_property
    def pane_us(self) -> int:
        """As long as both the windows and the steps between them are a whole number of."""
        return gcd(self.size_us, self.every_us)

    @property
    def windows_per_pane(self) -> int:
        """In how many windows a pane is, at most."""
        return -(-self.size_us // self.every_us)

    def __str__(self) -> str:
        """What it is. Stored with its panes: this text never changes."""
        size, every, offset = map(_told, (self.size_us, self.every_us, self.offset_us))
        kind = f"tumbling windows of {size}" if size == every else f"windows of {size} every {every}"
        return f"{kind} from {offset}" if self.offset_us else kind

    def mistakes(self) -> Iterator[str]:
        """Everything wrong with it, remedy included."""
        told = list(_duration_mistakes("its size", self.size))
        if self.every != self.size:
            told += _duration_mistakes("every", self.every)
        told += _duration_mistakes("offset", self.offset, may_be_zero=True, may_be_negative=True)
        yield from told
        if told:
            return
        if self.every_us > self.size_us:
            yield (
                f"a window of {self.size} every {self.every} would leave rows out; "
                "give every a time of at most the size"
            )
        elif self.size_us // self.pane_us > PANES_PER_WINDOW_MAX:
            yield (
                f"a window of {self.size} every {self.every} has {self.size_us // self.pane_us:,} panes; "
                f"choose times of which it has at most {PANES_PER_WINDOW_MAX:,}"
            )


@dataclass(frozen=True)
class SessionWindow:
    """Rows of a key that follow one another by less than `gap`. A session ends `gap` after its last row."""

    gap: str

    @cached_property
    def gap_us(self) -> int:
        return duration_ms(self.gap) * 1_000

    def __str__(self) -> str:
        """What it is. Stored with its sessions: this text never changes."""
        return f"sessions with a gap of {_told(self.gap_us)}"

    def mistakes(self) -> Iterator[str]:
        """Everything wrong with it, remedy included."""
        yield from _duration_mistakes("its gap", self.gap)


@dataclass(frozen=True)
class CountWindow:
    """So many rows of a key, one window after another."""

    rows: int

    def __str__(self) -> str:
        """What it is. Stored with what is counted: this text never changes."""
        return f"windows of {self.rows} rows"

    def mistakes(self) -> Iterator[str]:
        """Everything wrong with it, remedy included."""
        if type(self.rows) is not int or self.rows < 1:
            yield f"a window of {self.rows!r} rows is none; give a whole number of at least 1"


Window = TimeWindow | SessionWindow | CountWindow


def tumbling(size: str, offset: str = "0s") -> TimeWindow:
    """Windows of `size`, one after another: each row is in one. `offset` moves them all, for a time zone."""
    return TimeWindow(size, size, offset)


def sliding(size: str, *, every: str, offset: str = "0s") -> TimeWindow:
    """Windows of `size`, one beginning every `every`: each row is in size / every of them."""
    return TimeWindow(size, every, offset)


def session(gap: str) -> SessionWindow:
    """Windows of rows that follow one another by less than `gap`, such as the visit of a user."""
    return SessionWindow(gap)


def count_window(rows: int) -> CountWindow:
    """Windows of so many rows of a key, whatever their times."""
    return CountWindow(rows)


@dataclass(frozen=True)
class Windowed:
    """What is computed of windows: rows for each key and window when it closes."""

    window: Window
    on: str | None
    computation: Aggregation | Reduction | WindowProcess
    allowed_lateness: str | None = None
    emit_every: str | None = None

    @property
    def lateness_us(self) -> int:
        return 0 if self.allowed_lateness is None else duration_ms(self.allowed_lateness) * 1_000

    @property
    def emit_every_us(self) -> int | None:
        return None if self.emit_every is None else duration_ms(self.emit_every) * 1_000

    @property
    def computed(self) -> dict[str, str]:
        """What the stored state is of: field -> aggregate, the windows themselves, and how long they stay."""
        kept = {**self.computation.computed, WINDOW_KEPT: str(self.window)}
        if isinstance(self.window, CountWindow):
            return kept
        return {**kept, LATENESS_KEPT: str(self.lateness_us // 1_000)}

    @property
    def state(self) -> str:
        """The state that holds what is kept of windows."""
        return {TimeWindow: PANES, SessionWindow: SESSIONS, CountWindow: COUNTED}[type(self.window)]

    def state_fields(self, rows: pa.Schema) -> tuple[StateField, ...]:
        """The states of the operator over rows of this schema."""
        accumulators = [*self.computation.accumulator_type(rows), pa.field(REVISION, pa.int64())]
        numbers = [pa.field(name, pa.int64()) for name in OWN_FIELDS.get(self.state, ())]
        kept = pa.struct([*numbers, *accumulators])
        for name in kept.names:
            if kept.names.count(name) > 1:
                raise DefinitionError(
                    f"a result of the windows is named {name!r}, as a field of theirs; rename it"
                )
        if isinstance(self.window, CountWindow):
            return (StateField(1, COUNTED, StateKind.VALUE, kept),)
        if isinstance(self.window, SessionWindow):
            closings = StateField(2, CLOSINGS, StateKind.TIMED, pa.map_(TIME_TYPE, pa.bool_()))
            return StateField(1, SESSIONS, StateKind.VALUE, pa.list_(kept)), closings
        panes = StateField(1, PANES, StateKind.TIMED, pa.map_(self._pane_key, kept))
        if self.emit_every is None:
            return (panes,)
        return panes, StateField(2, EMISSIONS, StateKind.TIMED, pa.map_(TIME_TYPE, pa.int64()))

    @property
    def keeps_rows(self) -> bool:
        """Whether all rows are kept until their windows close."""
        return isinstance(self.computation, WindowProcess)

    @property
    def _pane_key(self) -> pa.DataType:
        # Rows that are kept are written once: every epoch that adds some has an entry of its own.
        return TIME_AND_NUMBER if self.keeps_rows else TIME_TYPE

    def output_schema(self, rows: pa.Schema, key_columns: Sequence[str]) -> pa.Schema:
        """Key columns, the window (its start and end; of a count its number), the results, revision; for
        sessions `deleted`."""
        if isinstance(self.computation, Aggregation):
            results = list(self.computation.output_schema(rows, key_columns))[len(key_columns) :]
        else:
            results = self.computation.output_fields(rows, key_columns)
        keys = [rows.field(name).remove_metadata() for name in key_columns]
        if isinstance(self.window, CountWindow):
            windows = [pa.field(WINDOW_NUMBER, pa.int64())]
        else:
            windows = [pa.field(name, rows.field(self._time_column).type) for name in WINDOW_COLUMNS]
        ends = [pa.field(REVISION, pa.int64())]
        if isinstance(self.window, SessionWindow):
            ends.append(pa.field(DELETED, pa.bool_()))
        schema = pa.schema([*keys, *windows, *results, *ends])
        for name in schema.names:
            if schema.names.count(name) > 1:
                raise DefinitionError(
                    f"{name!r} is a column of the windows, and a key column or a result has that name too; "
                    "rename that one"
                )
        return schema

    def late_schema(self, rows: pa.Schema) -> pa.Schema:
        """The columns of the rows, and the watermark that they came after."""
        time = rows.field(self._time_column).type
        if LATE_WATERMARK in rows.names:
            raise DefinitionError(
                f"a column {LATE_WATERMARK!r} of the rows is named like one of late rows; rename it with "
                "transform(...)"
            )
        return rows.append(pa.field(LATE_WATERMARK, time))

    @property
    def _time_column(self) -> str:
        if self.on is None:
            raise DefinitionError(NO_TIME_COLUMN)
        return self.on

    def mistakes(self) -> Iterator[str]:
        """Everything wrong with its times, remedy included."""
        yield from self.window.mistakes()
        if not isinstance(self.computation, Aggregation):
            yield from self.computation.mistakes()
        if isinstance(self.window, CountWindow):
            if self.on is not None or self.allowed_lateness is not None or self.emit_every is not None:
                yield "windows that are counted go by no time; leave out on, allowed_lateness and emit_every"
            return
        if self.on is None:
            yield NO_TIME_COLUMN
        if isinstance(self.window, SessionWindow) and self.emit_every is not None:
            yield "sessions give no early results, since their bounds are not known; leave out emit_every"
        if self.allowed_lateness is not None:
            yield from _duration_mistakes("allowed_lateness", self.allowed_lateness, may_be_zero=True)
        if self.emit_every is not None:
            yield from _duration_mistakes("emit_every", self.emit_every)


LATE_WATERMARK = "watermark"
NO_TIME_COLUMN = "its windows go by time, and no column is named; say on='ts'"


def _duration_mistakes(
    name: str, given: object, may_be_zero: bool = False, may_be_negative: bool = False
) -> Iterator[str]:
    if not isinstance(given, str):
        yield f"{name}={given!r} is not text; write a duration such as '10s'"
        return
    text = given.lstrip()
    if text.startswith("-") and not may_be_negative:
        yield f"{name}={given!r} is negative; give a duration such as '10s'"
        return
    try:
        if duration_ms(text.removeprefix("-")) < 1 and not may_be_zero:
            yield f"{name}={given!r} is no time at all; give at least '1ms'"
    except DefinitionError as error:
        yield f"{name}: {error}"


def _told(us: int) -> str:
    """A duration in the largest unit that it is a whole number of."""
    for unit, length in (("d", 86_400_000_000), ("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000)):
        if us % length == 0:
            return f"{us // length}{unit}"
    return f"{us // 1_000}ms"
