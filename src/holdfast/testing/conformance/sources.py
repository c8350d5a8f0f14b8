"""Checks a source: everything that is promised of it, in one report."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from holdfast.connectors.contract import Slice, Source
from holdfast.testing.conformance.promises import NotAsked, Report
from holdfast.testing.conformance.source_case import SLICES_MAX, SourceCase
from holdfast.testing.conformance.source_frames import FRAMES
from holdfast.testing.conformance.source_planning import PLANNING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS_MIN = 3


def check_source(
    make_source: Callable[[], Source],
    *,
    spark: SparkSession | None = None,
    rows_in: Callable[[Slice], int] | None = None,
    max_rows: Literal["exact", "approximate"] = "exact",
    endless: bool = False,
    vanish: Callable[[], object] | None = None,
    only: Collection[str] = (),
) -> Report:
    """Ask a source for everything that `holdfast.connectors.Source` promises. BrokenPromises: what it breaks.

    `make_source()` describes, at every call, the same input of 3 to 1,000 rows, all of it there already.
    `spark`: needed to see what slices hold; without it only planning is looked at. `rows_in(slice)`: how
    many rows a slice has, for a source that does not say so, where Spark is not to count them. `max_rows`:
    "approximate" where the source says that it keeps the limit only about. `endless`: it never says that it
    is exhausted. `vanish()`: destroys a part of the input, so that reading it must be refused; it is called
    last. `only`: names of the promises to ask for.
    """
    case = SourceCase(make_source, spark, rows_in, max_rows, endless, vanish)
    limit = _limit(case)
    return PLANNING.then(FRAMES).check(type(make_source()).__name__, only, lambda: replace(case, limit=limit))


def _limit(case: SourceCase) -> int:
    try:
        rows = case.rows_of(case.plan(case.reader(), None))
    except NotAsked:
        return 1
    except Exception:
        return ROWS_MIN  # each promise that this breaks will tell
    if rows < ROWS_MIN:
        raise ValueError(f"the source has {rows} rows; give the check one of {ROWS_MIN} to {SLICES_MAX}")
    return max(1, rows // ROWS_MIN)
