"""Committed rows printed as a table: for looking at a job while it is being written."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from holdfast.connectors.columns_as_text import plain_texts
from holdfast.connectors.contract import StagedPart

_CELL_WIDTH_MAX = 40


class ConsoleSink:
    """Prints each committed epoch, at most `max_rows` rows of it.

    At least once: a terminal cannot be asked what it already shows, so an epoch may be printed again after a
    crash. Values are shown as in JSON files, whatever they are, long ones cut short.
    """

    exactly_once: Final = False

    def __init__(self, *, max_rows: int = 20) -> None:
        self.max_rows: Final = max_rows

    def publisher(self, job: str, uid: str) -> ConsolePublisher:
        return ConsolePublisher(uid, self.max_rows)


class ConsolePublisher:
    def __init__(self, uid: str, max_rows: int) -> None:
        self._uid = uid
        self._max_rows = max_rows

    def published_through(self) -> int:
        return 0

    def publish(self, epoch: int, parts: Sequence[StagedPart]) -> None:
        tables = [part.load() for part in sorted(parts, key=lambda part: part.part) if part.rows]
        if tables:
            table = pa.concat_tables(tables)
            print(
                f"{self._uid}, epoch {epoch}: {table.num_rows} rows",
                *self._lines(table),
                sep="\n",
                flush=True,
            )

    def close(self) -> None:
        pass

    def _lines(self, table: pa.Table) -> list[str]:
        shown = table.slice(0, self._max_rows)
        columns = [
            [_printable(name), *map(_cell, plain_texts(column.combine_chunks()).to_pylist())]
            for name, column in zip(shown.column_names, shown.columns, strict=True)
        ]
        widths = [max(map(len, column)) for column in columns]
        lines = [
            "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in zip(*columns, strict=True)
        ]
        more = table.num_rows - shown.num_rows
        return [*lines, f"  ... and {more} more"] if more else lines


def _cell(value: str | None) -> str:
    text = "null" if value is None else value
    return _printable(text if len(text) <= _CELL_WIDTH_MAX else text[: _CELL_WIDTH_MAX - 3] + "...")


def _printable(text: str) -> str:
    """The text, with escapes for what the encoding of the terminal lacks."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
