"""Rows made up by Spark from their number: for load tests, examples and demonstrations.

Row `id` is a pure function of `id` and the seed, so a slice is just a range of ids and can always be read
again, anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from holdfast.connectors.contract import Arrived, Json, Slice
from holdfast.errors import DefinitionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SLICE_ROWS_MAX = 250_000
"""Rows of a slice when no limit is given: an endless source must not be planned in one piece."""


class GeneratorSource:
    """`columns` are Spark SQL expressions over `id` (long, from 0) and `rnd` (a long that looks random, by
    `id` and `seed`).

    They are cast to `schema`, by position for a list and by name for a dict. They must be deterministic: use
    `rnd`, not `rand()`. `rows_per_second` counts from the first planning, kept in the position: after a pause
    the backlog is still there, as with a real source. `total` ends the source. When a run is drained, what is
    due by then is at hand; without a rate that is all up to `total`, and nothing if there is no total.

        GeneratorSource(schema="user string, value long",
                        columns={"user": "concat('u', pmod(rnd, 1000))", "value": "id % 10"})
    """

    replayable: Final = True

    def __init__(
        self,
        columns: Mapping[str, str] | Sequence[str],
        *,
        schema: str,
        rows_per_second: float | None = None,
        total: int | None = None,
        seed: int = 0,
    ) -> None:
        if isinstance(columns, str) or not columns:
            raise DefinitionError("GeneratorSource has no columns; give a dict or a list of SQL expressions")
        if rows_per_second is not None and rows_per_second <= 0:
            raise DefinitionError(
                f"rows_per_second={rows_per_second} makes no rows; give a number above 0, or None"
            )
        if total is not None and total < 0:
            raise DefinitionError(f"total={total} is below 0; give the number of rows, or None for no end")
        self.columns: Final = columns
        self.schema: Final = schema
        self.rows_per_second: Final = rows_per_second
        self.total: Final = total
        self.seed: Final = seed

    def reader(self, notes: Sequence[Json]) -> GeneratorReader:
        return GeneratorReader(self)


class GeneratorReader:
    """A position is [next id, milliseconds at which the source started]."""

    def __init__(self, source: GeneratorSource) -> None:
        self._source = source
        self._started_ms: int | None = None
        self._now_ms = 0
        self._end: int | None = None
        self._projection: tuple[str, str, str] | None = None

    def next(self, after: Json | None, max_rows: int | None, now_ms: int) -> Slice | None:
        self._now_ms = now_ms
        if after is None and self._started_ms is None:
            self._started_ms = now_ms
        first, started_ms = after or [0, self._started_ms]
        end = first + (SLICE_ROWS_MAX if max_rows is None else max_rows)
        available = self._available(started_ms)
        if available is not None:
            end = min(end, available)
        if self._end is not None:
            end = min(end, self._end)
        return Slice(after, [end, started_ms], rows=end - first) if end > first else None

    def end_at(self, after: Json | None, now_ms: int, end: Json | None) -> Json:
        """A source without a rate and without a total has nothing at hand: it ends where it is."""
        self._now_ms = now_ms
        if self._started_ms is None:
            self._started_ms = now_ms if end is None else end[1]
        first, started_ms = after or [0, self._started_ms]
        available = self._available(started_ms)
        now = first if available is None else max(first, available)
        self._end = now if end is None else end[0]
        return [self._end, started_ms]

    def arrived(self, slice: Slice) -> Sequence[Arrived]:
        """By the rate. Without one all rows are there from the beginning, and none arrives."""
        rate = self._source.rows_per_second
        if rate is None:
            return []
        first, (end, started_ms) = (slice.start or [0])[0], slice.end
        first_ms, last_ms = (started_ms + row * 1_000 / rate for row in (first + 1, end))
        return [Arrived(end - first, first_ms, last_ms)]

    def exhausted(self, after: Json | None) -> bool:
        return self._source.total is not None and (after or [0])[0] >= self._source.total

    def frame(self, spark: SparkSession, slice: Slice) -> DataFrame:
        # One SQL text is one call into the JVM, whatever the number of columns.
        made, names, casts = self._projection = self._projection or self._project()
        first, end = (slice.start or [0])[0], slice.end[0]
        numbered = f"SELECT id, xxhash64(id, {self._source.seed}L) AS rnd FROM range({first}L, {end}L)"
        return spark.sql(f"SELECT {casts} FROM (SELECT {made} FROM ({numbered})) AS made({names})")

    def lag(self, after: Json | None) -> int | None:
        first, started_ms = after or [0, self._started_ms]
        available = self._available(self._now_ms if started_ms is None else started_ms)
        return None if available is None else max(0, available - first)

    def _available(self, started_ms: int) -> int | None:
        source = self._source
        if source.rows_per_second is None:
            return source.total
        due = int((self._now_ms - started_ms) * source.rows_per_second / 1000)
        return due if source.total is None else min(due, source.total)

    def _project(self) -> tuple[str, str, str]:
        from pyspark.sql.types import StructType

        schema = StructType.fromDDL(self._source.schema)
        assert isinstance(schema, StructType)
        fields = schema.fields
        columns = self._source.columns
        given = list(columns) if isinstance(columns, Mapping) else [field.name for field in fields]
        if sorted(given) != sorted(field.name for field in fields) or len(columns) != len(fields):
            raise DefinitionError(
                f"GeneratorSource makes {len(columns)} columns {list(columns)}, but its schema is "
                f"'{self._source.schema}'; give one expression for each column of the schema"
            )
        texts = [columns[name] for name in given] if isinstance(columns, Mapping) else list(columns)
        number_of = {name: number for number, name in enumerate(given)}
        casts = [
            f"CAST(c{number_of[field.name]} AS {field.dataType.simpleString()}) AS `{field.name}`"
            for field in fields
        ]
        return ", ".join(texts), ", ".join(f"c{number}" for number in number_of.values()), ", ".join(casts)
