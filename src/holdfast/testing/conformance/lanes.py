"""Checks a lane sink: everything that is promised of it, in one report."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import count

import pyarrow as pa

from holdfast.connectors.lanes import LaneSink
from holdfast.testing.conformance.lane_case import Disturbed, LaneCase
from holdfast.testing.conformance.lane_writing import WRITING
from holdfast.testing.conformance.promises import Report
from holdfast.testing.conformance.sink_case import SAMPLE

ROWS_MIN = 4


def check_lanes(
    make_sink: Callable[[str], LaneSink],
    read_rows: Callable[[str], Iterable[Sequence[object]]],
    *,
    sample: pa.Table | None = None,
    disturbed: Disturbed | None = None,
    refused: pa.Table | None = None,
    only: Collection[str] = (),
) -> Report:
    """Ask a lane sink for everything that `holdfast.connectors.LaneSink` promises. BrokenPromises: what it
    breaks. `check_sink` asks for what every sink promises.

    `make_sink(place)`, `read_rows(place)`, `sample` and `only`: as for `check_sink`. `disturbed(place)`: a
    context in which the server of a place cannot be reached, or its answers are lost: a connection that was
    opened before is written to within it. `refused`: rows that the server refuses for good.
    """
    rows = SAMPLE if sample is None else sample
    if rows.num_rows < ROWS_MIN:
        raise ValueError(f"the sample has {rows.num_rows} rows; give the check {ROWS_MIN} or more")
    places = count(1)

    def new_case() -> LaneCase:
        return LaneCase(make_sink, read_rows, rows, disturbed, refused, f"lanes_{next(places)}")

    name = type(make_sink(f"lanes_{next(places)}")).__name__
    return WRITING.check(name, only, new_case)
