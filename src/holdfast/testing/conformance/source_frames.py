"""What every source promises about the rows of its slices, seen with Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from holdfast.connectors.contract import (
    PartitionedReader,
    PartitionedSource,
    PiecesReader,
    Slice,
    SourceReader,
    VerifyingReader,
)
from holdfast.errors import InputVanished
from holdfast.testing.conformance.promises import NotAsked, Seen, Suite, hold
from holdfast.testing.conformance.source_case import NOW_MS, Rows, SourceCase, stored, stored_slice

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FRAMES: Suite[SourceCase] = Suite()


@FRAMES.promise(
    "frame-columns",
    "every frame has exactly the columns of `schema`",
    "select and cast the columns in frame",
)
def _frame_columns(case: SourceCase) -> None:
    if case.spark is None:
        raise NotAsked("no Spark session was given; give spark=")
    reader = case.reader()
    declared = _columns(case.spark.createDataFrame([], case.make().schema))
    for slice in case.plan(reader, case.limit):
        columns = _columns(reader.frame(case.spark, slice))
        hold(columns == declared, f"a frame of {columns}, `schema` says {declared}")


def _columns(frame: DataFrame) -> str:
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in frame.schema.fields)


@FRAMES.promise(
    "rows-counted",
    "Slice.rows is the exact number of rows in its frame, or None",
    "count exactly, or give rows=None",
)
def _rows_counted(case: SourceCase) -> None:
    reader = case.reader()
    for slice in case.plan(reader, case.limit):
        found = case.frame_rows(reader, slice).total()
        hold(slice.rows in (None, found), f"a frame of {found} rows for {slice}")


@FRAMES.promise(
    "partitions",
    "every row of a slice is of a partition that the reader names for it as one with rows",
    "name all partitions in partitions(slice), as the partition column gives them as text",
)
def _partitions(case: SourceCase) -> None:
    source, reader = case.make(), case.reader()
    if not isinstance(source, PartitionedSource):
        raise NotAsked("the source has no partition_column")
    hold(isinstance(reader, PartitionedReader), "a reader without partitions(slice)")
    assert isinstance(reader, PartitionedReader)
    if case.spark is None:
        raise NotAsked("no Spark session was given; give spark=")
    for slice in case.plan(reader, case.limit):
        named = {name for name, has_rows in reader.partitions(slice).items() if has_rows}
        column = f"cast(`{source.partition_column}` as string)"
        rows = reader.frame(case.spark, slice).selectExpr(column).distinct().collect()
        found = {row[0] for row in rows}
        hold(found <= named, f"rows of {sorted(map(str, found))}, named are {sorted(named)}, in {slice}")


@FRAMES.promise(
    "pieces",
    "the pieces of a slice have the rows of its frame, with the columns that Spark would hand to Python",
    "read in pieces(spark, slice) what frame reads, as the same types; give None where only Spark can",
)
def _pieces(case: SourceCase) -> None:
    reader = case.reader()
    if not isinstance(reader, PiecesReader):
        raise NotAsked("its reader has no pieces")
    if case.spark is None:
        raise NotAsked("no Spark session was given; give spark=")
    for slice in case.plan(reader, case.limit):
        pieces = reader.pieces(case.spark, slice)
        if pieces is None:
            continue
        frame = reader.frame(case.spark, slice)
        columns = case.spark.createDataFrame([], frame.schema).toArrow().schema
        batches = [batch for number in range(pieces.count) for batch in pieces.read(number)]
        for batch in batches:
            hold(batch.schema.equals(columns), f"a piece of {batch.schema}, Spark hands over {columns}")
        read = case.spark.createDataFrame(pa.Table.from_batches(batches, columns))
        rows = Counter(map(repr, read.collect()))
        _hold_same(rows, case.frame_rows(reader, slice), f"{slice}, read in pieces and by Spark")
        hold(pieces.rows in (None, rows.total()), f"{rows.total()} rows, said are {pieces.rows}, in {slice}")


@FRAMES.promise(
    "same-rows-again",
    "a slice gives the same rows each time, whatever other slices are read in between",
    "read just what the slice says, by its start, end and detail; if that cannot be, say replayable = False",
)
def _same_rows_again(case: SourceCase) -> None:
    case.needs_replay()
    reader = case.reader()
    slices = case.plan(reader, case.limit)
    first = [case.frame_rows(reader, slice) for slice in slices]
    again = [case.frame_rows(reader, slice) for slice in reversed(slices)]
    for slice, one, other in zip(slices, first, reversed(again), strict=True):
        _hold_same(one, other, f"{slice}, read twice")


@FRAMES.promise(
    "same-rows-in-another-run",
    "a slice that another run planned gives the same rows",
    "read by what is in the slice, and not by what the reader remembers of planning it",
)
def _same_rows_in_another_run(case: SourceCase) -> None:
    case.needs_replay()
    planner = case.reader()
    slices = case.plan(planner, case.limit)
    for number, slice in enumerate(slices):
        other = case.reader(slices[: number + 1])
        here, there = case.frame_rows(planner, slice), case.frame_rows(other, stored_slice(slice))
        _hold_same(here, there, f"{slice}, read here and in another run")


@FRAMES.promise(
    "no-row-twice",
    "no row is in two slices and none is left out, however the input is cut and wherever a run begins",
    "let a slice hold the rows after its start, up to and with its end",
)
def _no_row_twice(case: SourceCase) -> None:
    case.needs_replay()
    reader = case.reader()
    whole = _all_rows(case, reader, case.plan(reader, None))
    reader = case.reader()
    slices = case.plan(reader, case.limit)
    _hold_same(whole, _all_rows(case, reader, slices), f"all rows in one slice and in {len(slices)}")
    later = case.reader(slices[:1])
    rest = case.plan(later, case.limit, stored(slices[0].end))
    seen = case.frame_rows(later, stored_slice(slices[0])) + _all_rows(case, later, rest)
    _hold_same(whole, seen, "all rows of one run, and of two runs one after the other")


def _all_rows(case: SourceCase, reader: SourceReader, slices: Sequence[Slice]) -> Rows:
    return sum((case.frame_rows(reader, slice) for slice in slices), Counter())


def _hold_same(one: Rows, other: Rows, what: str) -> None:
    missing, more = one - other, other - one
    if missing or more:
        shown = "; ".join(
            f"{text} {', '.join(sorted(rows.elements())[:3])}"
            for text, rows in (("only the first has", missing), ("only the second has", more))
            if rows
        )
        raise Seen(f"{what}: {shown}")


@FRAMES.promise(
    "frame-plans-nothing",
    "frame changes nothing of what next plans",
    "keep what frame learns apart from what next plans by",
)
def _frame_plans_nothing(case: SourceCase) -> None:
    with_frames, without = case.reader(), case.reader()
    after = None
    while (slice := with_frames.next(after, case.limit, NOW_MS)) is not None:
        case.frame_rows(with_frames, slice)
        plain = without.next(after, case.limit, NOW_MS)
        hold(slice == plain, f"{slice} where frames were asked for, {plain} where not")
        after = slice.end


@FRAMES.promise(
    "verify",
    "verify passes for input that is as it was",
    "raise InputVanished only where the input differs from what frame looked at",
)
def _verify(case: SourceCase) -> None:
    reader = case.reader()
    if not isinstance(reader, VerifyingReader):
        raise NotAsked("its reader has no verify")
    for slice in case.plan(reader, case.limit):
        case.frame_rows(reader, slice)
        reader.verify(slice)


@FRAMES.promise(
    "vanished-input",
    "frame raises InputVanished where the input is no longer what was planned, before Spark reads it",
    "look on the driver, in frame, whether what was planned is still there",
)
def _vanished_input(case: SourceCase) -> None:
    if case.vanish is None:
        raise NotAsked("nothing was given that destroys input; give vanish=")
    if case.spark is None:
        raise NotAsked("no Spark session was given; give spark=")
    reader = case.reader()
    slices = case.plan(reader, case.limit)
    case.vanish()
    for slice in slices:
        try:
            reader.frame(case.spark, slice)
        except InputVanished:
            return
    raise Seen(f"input was destroyed, and frame took all {len(slices)} slices that were planned before")
