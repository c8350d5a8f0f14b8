"""Checks a sink: everything that is promised of it, in one report."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import count

import pyarrow as pa

from holdfast.connectors.contract import Sink
from holdfast.testing.conformance.promises import Report
from holdfast.testing.conformance.sink_case import SAMPLE, SinkCase
from holdfast.testing.conformance.sink_columns import COLUMNS
from holdfast.testing.conformance.sink_marks import MARKS
from holdfast.testing.conformance.sink_showing import SHOWING

ROWS_MIN = 4


def check_sink(
    make_sink: Callable[[str], Sink],
    read_rows: Callable[[str], Iterable[Sequence[object]]],
    *,
    sample: pa.Table | None = None,
    take_away: Callable[[str], object] | None = None,
    only: Collection[str] = (),
) -> Report:
    """Ask a sink for everything that `holdfast.connectors.Sink` promises. BrokenPromises: what it breaks.

    `make_sink(place)` describes a sink that writes to a place of that name (a directory, a table): a new
    name for each promise, the same one again for another run. `read_rows(place)` gives the rows that a
    plain reader finds there now, as tuples in the order of the columns, in any order of rows; none where
    nothing was ever written. `sample`: four or more different rows that the sink can show; without it rows of
    `user string, total long`. `take_away(place)`: removes what is shown there, for a sink that has a mark.
    `only`: names of the promises to ask for.
    """
    rows = SAMPLE if sample is None else sample
    if rows.num_rows < ROWS_MIN:
        raise ValueError(f"the sample has {rows.num_rows} rows; give the check {ROWS_MIN} or more")
    places = count(1)

    def new_case() -> SinkCase:
        return SinkCase(make_sink, read_rows, rows, take_away, f"place_{next(places)}")

    name = type(make_sink(f"place_{next(places)}")).__name__
    return SHOWING.then(MARKS).then(COLUMNS).check(name, only, new_case)
