"""A source that keeps every promise, and for each promise one that breaks it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from holdfast.connectors.contract import Arrived, Json, Pieces, Slice, Waiting
from holdfast.errors import DefinitionError, InputVanished

ROWS = 10


class HonestReader:
    """A position is the number of rows so far."""

    columns = "n long"

    def __init__(self, input: list[int]) -> None:
        self.input, self.end, self.said = input, None, ["one thing"]

    def next(self, after: Json | None, max_rows: int | None, now_ms: int) -> Slice | None:
        first = after or 0
        end = min(
            len(self.input) if self.end is None else self.end,
            first + (ROWS if max_rows is None else max_rows),
        )
        return Slice(after, end, rows=end - first) if end > first else None

    def exhausted(self, after: Json | None) -> bool:
        return (after or 0) >= len(self.input)

    def frame(self, spark: Any, slice: Slice) -> Any:
        if slice.end > len(self.input):
            raise InputVanished(f"rows up to {slice.end} are gone; restore them")
        return self.made(spark, self.input[slice.start or 0 : slice.end])

    def made(self, spark: Any, rows: Sequence[Any]) -> Any:
        return spark.createDataFrame([(row,) for row in rows], self.columns)

    def lag(self, after: Json | None) -> int | None:
        return len(self.input) - (after or 0)

    def end_at(self, after: Json | None, now_ms: int, end: Json | None) -> Json:
        self.end: Any = len(self.input) if end is None else end
        return self.end

    def waiting(self, after: Json | None) -> Waiting:
        return Waiting(1, len(self.input))

    def news(self) -> Sequence[str]:
        said, self.said = self.said, []
        return said

    def partitions(self, slice: Slice) -> dict[str, bool]:
        return {str(row): True for row in self.input[slice.start or 0 : slice.end]}

    def pieces(self, spark: Any, slice: Slice) -> Pieces | None:
        return Pieces(1, slice.rows, self.read_by_tasks(self.input[slice.start or 0 : slice.end]))

    def read_by_tasks(self, rows: list[int]) -> Callable[[int], list[pa.RecordBatch]]:
        return lambda number: [pa.RecordBatch.from_pydict({"n": pa.array(rows, pa.int64())})]

    def verify(self, slice: Slice) -> None:
        pass

    def arrived(self, slice: Slice) -> Sequence[Arrived]:
        return [Arrived(slice.rows or 0, 1_000, 1_000)]

    def committed(self, position: Json) -> None:
        pass

    def released(self, position: Json) -> None:
        pass

    def health(self) -> str:
        return ""


class HonestSource:
    schema = "n long"
    replayable: Any = True
    partition_column = "n"
    reads: type[HonestReader] = HonestReader

    def __init__(self, input: list[int]) -> None:
        self.input = input

    def check(self) -> None:
        pass

    def reader(self, notes: Sequence[Json]) -> HonestReader:
        return self.reads(self.input)


BROKEN: dict[str, type[HonestSource]] = {}


def breaks(name: str) -> Callable[[type], type]:
    """This reader, or source, breaks the promise `name`."""

    def added(broken: type) -> type:
        is_source = issubclass(broken, HonestSource)
        BROKEN[name] = broken if is_source else type(broken.__name__, (HonestSource,), {"reads": broken})
        return broken

    return added


@breaks("source")
class NoColumns(HonestSource):
    schema = "n lnog"


@breaks("check")
class RefusesItself(HonestSource):
    def check(self) -> None:
        raise DefinitionError("the table is not there; correct its name")


@breaks("slices-follow")
class StartsAtZero(HonestReader):
    def next(self, after: Json | None, max_rows: int | None, now_ms: int) -> Slice | None:
        return super().next(after or 0, max_rows, now_ms)


@breaks("no-empty-slices")
class EmptySlices(HonestReader):
    """Gives one empty slice at the end."""

    told = False

    def next(self, after: Json | None, max_rows: int | None, now_ms: int) -> Slice | None:
        planned = super().next(after, max_rows, now_ms)
        if planned is None and not self.told:
            self.told = True
            return Slice(after, after, rows=0)
        return planned


@breaks("max-rows")
class TakesAll(HonestReader):
    def next(self, after: Json | None, max_rows: int | None, now_ms: int) -> Slice | None:
        return super().next(after, None, now_ms)


@breaks("limit-loses-nothing")
class SkipsRows(HonestReader):
    """Counts the row at the end of a slice twice: it is in none."""

    def next(self, after: Json | None, max_rows: int | None, now_ms: int) -> Slice | None:
        planned = super().next(after and after + 1, max_rows, now_ms)
        return planned and Slice(after, planned.end, rows=planned.rows)


@breaks("json")
class Tuples(HonestReader):
    def next(self, after: Json | None, max_rows: int | None, now_ms: int) -> Slice | None:
        planned = super().next(after, max_rows, now_ms)
        return planned and Slice(after, planned.end, rows=planned.rows, detail=(1, 2))


@breaks("goes-on")
class BeginsAgain(HonestReader):
    """Knows where it is, if it was there."""

    known = (0,)

    def next(self, after: Json | None, max_rows: int | None, now_ms: int) -> Slice | None:
        planned = super().next(after if after in self.known else None, max_rows, now_ms)
        self.known = (*self.known, *((planned.end,) if planned else ()))
        return planned and Slice(after, planned.end, rows=planned.rows)


@breaks("older-position")
class OnlyForward(HonestReader):
    at = 0

    def next(self, after: Json | None, max_rows: int | None, now_ms: int) -> Slice | None:
        planned = super().next(max(after or 0, self.at) or None, max_rows, now_ms)
        self.at = planned.end if planned else self.at
        return planned


@breaks("exhausted")
class EndsEarly(HonestReader):
    def exhausted(self, after: Json | None) -> bool:
        return True


@breaks("lag")
class CountsOneMore(HonestReader):
    def lag(self, after: Json | None) -> int:
        return len(self.input) - (after or 0) + 1


@breaks("end-at")
class GoesOn(HonestReader):
    def end_at(self, after: Json | None, now_ms: int, end: Json | None) -> Json:
        return len(self.input) if end is None else end


@breaks("waiting-and-news")
class Repeats(HonestReader):
    def news(self) -> Sequence[str]:
        return self.said


@breaks("arrived")
class ArrivedTheOtherWayRound(HonestReader):
    def arrived(self, slice: Slice) -> Sequence[Arrived]:
        return [Arrived(slice.rows or 0, 2_000, 1_000)]


@breaks("committed")
class GoesOnByItself(HonestReader):
    def committed(self, position: Json) -> None:
        self.end = position


@breaks("released")
class TrimsTooMuch(HonestReader):
    def released(self, position: Json) -> None:
        self.end = position + 1


@breaks("health")
class SaysNothing(HonestReader):
    def health(self) -> Any:
        return None


@breaks("frame-columns")
class OtherColumns(HonestReader):
    columns = "n int"


@breaks("rows-counted")
class Estimates(HonestReader):
    def next(self, after: Json | None, max_rows: int | None, now_ms: int) -> Slice | None:
        planned = super().next(after, max_rows, now_ms)
        return planned and Slice(after, planned.end, rows=(planned.rows or 0) + 1)


@breaks("partitions")
class KnowsTheFirst(HonestReader):
    def partitions(self, slice: Slice) -> dict[str, bool]:
        return dict([*super().partitions(slice).items()][:1])


@breaks("pieces")
class NarrowerPieces(HonestReader):
    def read_by_tasks(self, rows: list[int]) -> Callable[[int], list[pa.RecordBatch]]:
        return lambda number: [pa.RecordBatch.from_pydict({"n": pa.array(rows, pa.int32())})]


@breaks("same-rows-again")
class OnceOnly(HonestReader):
    """Gives what is there at the first time, and nothing afterwards, as a queue would."""

    def frame(self, spark: Any, slice: Slice) -> Any:
        gone = vars(self).setdefault("gone", set())
        rows = [row for row in self.input[slice.start or 0 : slice.end] if row not in gone]
        gone.update(rows)
        return self.made(spark, rows)


@breaks("same-rows-in-another-run")
class ReadsWhatItPlanned(HonestReader):
    def next(self, after: Json | None, max_rows: int | None, now_ms: int) -> Slice | None:
        planned = super().next(after, max_rows, now_ms)
        vars(self).setdefault("planned", []).append(planned)
        return planned

    def frame(self, spark: Any, slice: Slice) -> Any:
        known = slice in vars(self).get("planned", [])
        return super().frame(spark, slice) if known else self.made(spark, [])


@breaks("no-row-twice")
class WithItsStart(HonestReader):
    def frame(self, spark: Any, slice: Slice) -> Any:
        return self.made(spark, self.input[max((slice.start or 0) - 1, 0) : slice.end])


@breaks("frame-plans-nothing")
class PlansByFrames(HonestReader):
    def frame(self, spark: Any, slice: Slice) -> Any:
        self.end = slice.end + 1
        return super().frame(spark, slice)


@breaks("verify")
class NeverSure(HonestReader):
    def verify(self, slice: Slice) -> None:
        raise InputVanished("it was changed; restore it")


@breaks("vanished-input")
class TakesWhatIsThere(HonestReader):
    def frame(self, spark: Any, slice: Slice) -> Any:
        return self.made(spark, self.input[slice.start or 0 : slice.end])
