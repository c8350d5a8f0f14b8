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
from holdfast.state.encoding.layout import TIME_TYPE, StateField, StateKind

PANES, EMISSIONS = "panes", "emissions"
"""The states of an operator over windows: what is kept of each pane; which keys have early results due."""
REVISION = "revision"
"""The epoch that a row of a window comes from, and that last changed a pane."""
WINDOW_START, WINDOW_END = WINDOW_COLUMNS = ("window_start", "window_end")
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


Window = TimeWindow


def tumbling(size: str, offset: str = "0s") -> TimeWindow:
    """Windows of `size`, one after another: each row is in one. `offset` moves them all, for a time zone."""
    return TimeWindow(size, size, offset)


def sliding(size: str, *, every: str, offset: str = "0s") -> TimeWindow:
    """Windows of `size`, one beginning every `every`: each row is in size / every of them."""
    return TimeWindow(size, every, offset)


@dataclass(frozen=True)
class WindowAggregation:
    """Aggregates over windows: one row for each key and window when it closes."""

    window: Window
    on: str
    aggregation: Aggregation
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
        """What the stored panes are of: field -> aggregate, and the windows themselves."""
        return {**self.aggregation.computed, "(window)": str(self.window)}

    def pane_type(self, rows: pa.Schema) -> pa.StructType:
        """What is stored of a pane."""
        return pa.struct([*self.aggregation.accumulator_type(rows), pa.field(REVISION, pa.int64())])

    def state_fields(self, rows: pa.Schema) -> tuple[StateField, ...]:
        """The states of the operator over rows of this schema."""
        panes = StateField(1, PANES, StateKind.TIMED, pa.map_(TIME_TYPE, self.pane_type(rows)))
        if self.emit_every is None:
            return (panes,)
        return panes, StateField(2, EMISSIONS, StateKind.TIMED, pa.map_(TIME_TYPE, pa.int64()))

    def output_schema(self, rows: pa.Schema, key_columns: Sequence[str]) -> pa.Schema:
        """Key columns, window_start, window_end, the results, revision."""
        taken = [*key_columns, *WINDOW_COLUMNS, REVISION]
        for name in self.aggregation.aggregates:
            if name in taken:
                raise DefinitionError(f"aggregate {name!r} is named like another column; rename it")
        for name in key_columns:
            if name in (*WINDOW_COLUMNS, REVISION):
                raise DefinitionError(
                    f"the key column {name!r} is named like a column of the windows; rename it with "
                    "transform(...)"
                )
        results = self.aggregation.output_schema(rows, key_columns)
        keys, rest = list(results)[: len(key_columns)], list(results)[len(key_columns) :]
        times = [pa.field(name, rows.field(self.on).type) for name in WINDOW_COLUMNS]
        return pa.schema([*keys, *times, *rest, pa.field(REVISION, pa.int64())])

    def late_schema(self, rows: pa.Schema) -> pa.Schema:
        """The columns of the rows, and the watermark that they came after."""
        if LATE_WATERMARK in rows.names:
            raise DefinitionError(
                f"a column {LATE_WATERMARK!r} of the rows is named like one of late rows; rename it with "
                "transform(...)"
            )
        return rows.append(pa.field(LATE_WATERMARK, rows.field(self.on).type))

    def mistakes(self) -> Iterator[str]:
        """Everything wrong with its times, remedy included."""
        yield from self.window.mistakes()
        if self.allowed_lateness is not None:
            yield from _duration_mistakes("allowed_lateness", self.allowed_lateness, may_be_zero=True)
        if self.emit_every is not None:
            yield from _duration_mistakes("emit_every", self.emit_every)


LATE_WATERMARK = "watermark"


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
