"""A join of two keyed streams window by window: what is declared, and what it keeps.

A left and a right row of the same key are a pair in every window that both lie in. A window is given out
once, when the watermark passes its end; a row is kept, once, until the last of its windows is.
Never here: running it (see tasks.operators.window_join).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from holdfast.graph.job_graph import shown
from holdfast.graph.time_joins import TimeJoin
from holdfast.graph.two_inputs import side_schemas_of
from holdfast.graph.windows import WINDOW_COLUMNS, CountWindow, SessionWindow, TimeWindow, Window
from holdfast.state.files.evolution import WINDOW_KEPT


@dataclass(frozen=True)
class WindowJoin(TimeJoin):
    """What `window_join` was given. `window` is a TimeWindow unless `mistakes` says otherwise."""

    on: tuple[str, str]
    window: Window
    how: str
    right_key: tuple[str, ...]

    states: ClassVar[tuple[str, str]] = ("left_window_rows", "right_window_rows")
    """Not those of an interval join: rows that one of them kept are not the rows that the other needs."""

    @property
    def time_window(self) -> TimeWindow:
        assert isinstance(self.window, TimeWindow)
        return self.window

    @property
    def kept_of(self) -> dict[str, dict[str, str]]:
        """Rows are kept as long as these windows need them: others would miss some."""
        return {state: {WINDOW_KEPT: str(self.window)} for state in self.states}

    def leading_columns(self, rows: pa.Schema, key: Sequence[str]) -> list[pa.Field]:
        """The key, the window, and the other columns of the left rows."""
        left = side_schemas_of(rows)[0]
        time = left.field(self.on[0]).type
        return [
            *(pa.field(name, left.field(name).type) for name in key),
            *(pa.field(name, time) for name in WINDOW_COLUMNS),
            *(pa.field(name, left.field(name).type) for name in self.kept_columns(rows, key)[0]),
        ]

    def mistakes(self) -> Iterator[tuple[str, str]]:
        """What is wrong with what was given, and what to do."""
        yield from super().mistakes()
        if isinstance(self.window, SessionWindow):
            yield (
                "a session has no bounds of its own: which rows of one side lie in the same session would "
                "depend on the rows of the other",
                "join with hf.tumbling or hf.sliding, or by distance with interval_join(...)",
            )
        elif isinstance(self.window, CountWindow):
            yield (
                "counted windows go by no time, so that rows of two sides do not lie in the same one",
                "join with hf.tumbling('5m') or hf.sliding('5m', every='1m')",
            )
        elif not isinstance(self.window, TimeWindow):
            yield f"{shown(self.window)} is not a window", "give hf.tumbling('5m') or another one"
        else:
            for text in self.window.mistakes():
                problem, _, remedy = text.rpartition("; ")
                yield problem, remedy
