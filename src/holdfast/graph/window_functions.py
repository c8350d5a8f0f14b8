"""What is made of the rows of a window, besides aggregates: a reduction of them, or what user code makes of
all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

import pyarrow as pa

from holdfast.errors import DefinitionError
from holdfast.graph.contexts import Context, OutputRow
from holdfast.state.encoding.row_objects import Row
from holdfast.state.encoding.types import parse_schema, relaxed

REDUCED, ROWS = "reduced", "rows"
"""What is kept of a window: the row that its rows were reduced to; its rows."""


@dataclass(frozen=True, slots=True)
class WindowBounds:
    """The window that a `WindowFunction` is given: its start (in) and end (out), or its number. A bound
    that no datetime can hold is the nearest that one can."""

    start: datetime | None = None
    end: datetime | None = None
    number: int | None = None
    """Of a window that is counted: which of its key, from 0."""


class WindowFunction:
    """User code that sees all rows of a window at once, when it closes.

    `output` is the schema of what `process` yields; key columns and the window stand before it. All rows are
    kept until then: where an aggregate or a reduction will do, it takes less.
    """

    output: ClassVar[str]

    def process(self, window: WindowBounds, rows: list[Row], ctx: Context) -> Iterable[OutputRow] | None:
        """Handle a window of one key: yield output rows. Rows come in the order of their times; those of a
        window that is counted in the order of the epochs, and within one by `order_by`.

        Called again for a window that has changed after it closed, or before it did with `emit_every`.
        """
        raise NotImplementedError


def _rows_type(rows: pa.Schema) -> pa.StructType:
    return pa.struct([pa.field(field.name, relaxed(field.type)) for field in rows])


@dataclass(frozen=True, slots=True)
class Reduction:
    """Rows made one, two at a time: `fn(row, row)` gives a row of the same columns."""

    fn: Callable[[Row, Row], Any]

    @property
    def computed(self) -> dict[str, str]:
        """What is kept -> what it is. Stored: this text never changes."""
        return {REDUCED: "reduced row"}

    def accumulator_type(self, rows: pa.Schema) -> pa.StructType:
        return pa.struct([pa.field(REDUCED, _rows_type(rows))])

    def output_fields(self, rows: pa.Schema, key_columns: Sequence[str]) -> list[pa.Field]:
        """The columns of the rows but for the key."""
        return [pa.field(field.name, relaxed(field.type)) for field in rows if field.name not in key_columns]

    def mistakes(self) -> Iterator[str]:
        if not callable(self.fn):
            yield f"reduce({self.fn!r}): not a function; give one of two rows, which gives back a row"


@dataclass(frozen=True, slots=True)
class WindowProcess:
    """All rows of a window, given to a function."""

    function: WindowFunction

    @property
    def computed(self) -> dict[str, str]:
        """What is kept -> what it is. Stored: this text never changes."""
        return {ROWS: "rows"}

    def accumulator_type(self, rows: pa.Schema) -> pa.StructType:
        return pa.struct([pa.field(ROWS, pa.list_(_rows_type(rows)))])

    def output_fields(self, rows: pa.Schema, key_columns: Sequence[str]) -> list[pa.Field]:
        """Those that the function declares."""
        declared = getattr(self.function, "output", None)
        if not isinstance(declared, str):
            name = type(self.function).__name__
            raise DefinitionError(f"{name} declares no output; add a line such as output = 'n long'")
        return list(parse_schema(declared))

    def mistakes(self) -> Iterator[str]:
        given = self.function
        if not isinstance(given, WindowFunction):
            shown = f"the class {given.__name__}" if isinstance(given, type) else f"{given!r:.60}"
            yield f"{shown} is not a function of windows; give an instance of a class of hf.WindowFunction"
        elif type(given).process is WindowFunction.process:
            yield f"{type(given).__name__} has no process method; write one"
