"""The rows of files as Spark reads them, with those told apart that do not fit the schema.

Spark marks a row that it cannot parse, or that has a value of another type, while it parses it (PERMISSIVE,
with a column for such rows). It parses only what a query needs, though, and leaves the rest unseen: unused
columns, and rows that a filter refuses halfway. So what is told here lies behind a count over every column,
which Spark's optimiser moves nothing past.
Always true: whether a row fits depends on the row and the schema alone, never on what is done with it; every
row is in `strict` or fails it; every row is in `sifted` or, once, in `letters`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial, reduce
from operator import and_
from typing import TYPE_CHECKING

from holdfast.connectors.contract import MALFORMED, Sifted
from holdfast.connectors.files.frames import BAD, FILE, FileFrames, quoted
from holdfast.connectors.files.reasons import RowForm, with_reasons
from holdfast.connectors.files.sampling import has_header, option

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

_LETTERS_DDL = "file string, line long, row string, reason string"

FileColumns = tuple[str, ...] | None
"""The columns of a file in their order; None: those that are declared."""


class Sifter:
    """The rows of one slice: files of one format, and which columns each has."""

    def __init__(
        self,
        frames: FileFrames,
        format: str,
        schema: StructType,
        options: Mapping[str, str],
        files: Mapping[str, FileColumns],
    ) -> None:
        self._frames, self._format = frames, format
        self._schema, self._options, self._files = schema, options, files

    def lenient(self, mode: str) -> DataFrame:
        """The rows as Spark's parser has them in a mode that its user chose."""
        return self._parsed(mode).drop(BAD)

    def strict(self) -> DataFrame:
        """The rows. A job over them fails with MALFORMED where one does not fit."""
        from pyspark.sql import Observation
        from pyspark.sql.functions import count_if, lit, raise_error, when

        if self._format == "parquet" and all(field.nullable for field in self._schema):
            # Nothing can be malformed, so Spark may leave unread what is not needed.
            return self._parsed().drop(BAD)
        checked = when(self._fits(), lit(True)).otherwise(raise_error(lit(MALFORMED)).cast("boolean"))
        rows = self._parsed().where(checked)
        return rows.observe(Observation(), count_if(self._all_empty()).alias("empty")).drop(BAD)

    def sifted(self) -> Sifted:
        """The rows that fit, and how many did not."""
        from pyspark.sql import Observation
        from pyspark.sql.functions import count, count_if, lit

        seen = Observation()
        counts = (count(lit(1)).alias("rows"), count_if(~self._fits()).alias("malformed"))
        rows = self._parsed().observe(seen, *counts, count_if(self._all_empty()).alias("empty"))

        def observed() -> tuple[int, int]:
            told = seen.get
            return told["rows"], told["malformed"]

        return Sifted(rows.where(self._fits()).drop(BAD), observed)

    def letters(self, prefix: str) -> DataFrame:
        """The rows that do not fit: file, line, row, reason. `prefix` goes before the names of files."""
        bad = self._bad()
        found = self._unplaced(bad) if self._spans_lines() else self._placed(bad)
        types = {field.name: field.dataType.simpleString() for field in self._schema}
        never_null = tuple(field.name for field in self._schema if not field.nullable)
        form = RowForm(self._format, dict(self._options), types, never_null)
        return found.mapInArrow(partial(with_reasons, form, prefix), _LETTERS_DDL)

    def _parsed(self, mode: str = "PERMISSIVE", *, with_file: bool = False) -> DataFrame:
        """The declared columns, and the text of rows that could not be parsed; with the file of a row, and
        the columns that it has."""
        groups: dict[FileColumns, list[str]] = {}
        for name, columns in self._files.items():
            groups.setdefault(columns if has_header(self._format, self._options) else None, []).append(name)
        frames = [self._group(columns, names, mode, with_file) for columns, names in groups.items()]
        return reduce(lambda one, other: one.unionByName(other), frames)

    def _group(self, columns: FileColumns, names: Sequence[str], mode: str, with_file: bool) -> DataFrame:
        """The rows of files that have the same columns."""
        from pyspark.sql.functions import array, col, lit
        from pyspark.sql.types import StringType, StructField, StructType

        declared = {field.name.casefold(): field for field in self._schema}
        if columns is None:
            fields = list(self._schema)
        else:
            own = [declared.get(name.casefold()) for name in columns]
            fields = [
                StructField(name, StringType() if field is None else field.dataType)
                for name, field in zip(columns, own, strict=True)
            ]
        text = self._format != "parquet"
        marked = [StructField(BAD, StringType())] if text else []
        wanted = StructType([*fields, *marked])
        frame = self._frames.parsed(names, wanted, mode if text else None, with_file)
        there = {field.name.casefold(): field.name for field in fields}
        chosen = [
            (col(quoted(there[key])) if key in there else lit(None).cast(field.dataType)).alias(field.name)
            for key, field in declared.items()
        ]
        mark = (col(BAD) if text else lit(None).cast("string")).alias(BAD)
        more = []
        if with_file:
            more = [col(FILE), array(*(lit(field.name) for field in fields)).alias("__hf_columns")]
        return frame.select(*chosen, mark, *more)

    def _fits(self) -> Column:
        from pyspark.sql.functions import col

        needed = [col(quoted(field.name)).isNotNull() for field in self._schema if not field.nullable]
        return reduce(and_, needed, col(BAD).isNull())

    def _all_empty(self) -> Column:
        """True of a row without values. Counting it takes every column."""
        from pyspark.sql.functions import col

        return reduce(and_, [col(quoted(field.name)).isNull() for field in self._schema])

    def _bad(self) -> DataFrame:
        """The rows that do not fit: file, the text of those that could not be parsed, what was read of the
        others, declared columns without a value, columns of the file."""
        from pyspark.sql.functions import (
            array,
            array_compact,
            col,
            lit,
            make_valid_utf8,
            struct,
            to_json,
            when,
        )

        rows = self._parsed(with_file=True).where(~self._fits())
        names = [field.name for field in self._schema]
        empty = [when(col(quoted(name)).isNull(), lit(name)) for name in names]
        return rows.select(
            col(FILE).alias("file"),
            make_valid_utf8(col(BAD)).alias("row"),
            to_json(struct(*(col(quoted(name)) for name in names))).alias("seen"),
            array_compact(array(*empty)).alias("empty"),
            when(col(BAD).isNotNull(), col("__hf_columns")).alias("columns"),
        )

    def _spans_lines(self) -> bool:
        """Whether a row need not be a line that can be found by its text."""
        encoding = option(self._options, "encoding", "charset", default="UTF-8")
        many = option(self._options, "multiLine").lower() == "true"
        return self._format == "parquet" or many or encoding.lower().replace("-", "") != "utf8"

    def _unplaced(self, bad: DataFrame) -> DataFrame:
        return bad.selectExpr(
            "file", "cast(null as long) as line", "coalesce(row, seen) as row", "empty", "columns"
        )

    def _placed(self, bad: DataFrame) -> DataFrame:
        """With lines: rows of equal text in one file fit alike, so every line of that text is one."""
        from pyspark.sql.functions import count, lit, min

        texts = (
            bad.where("row is not null")
            .groupBy("file", "row")
            .agg(count(lit(1)).alias("times"), min("empty").alias("empty"), min("columns").alias("columns"))
        )
        placed = texts.join(self._lines(), ["file", "row"], "left").selectExpr(
            "file", "line", "row", "empty", "columns",
            "explode(sequence(1, case when line is null then cast(times as int) else 1 end)) as time",
        )  # fmt: skip
        return placed.drop("time").unionByName(self._unplaced(bad.where("row is null")))

    def _lines(self) -> DataFrame:
        """Every line of the files: file, line, row."""
        numbered = self._frames.lines(list(self._files))
        # A header is no row, also where a row has the same text.
        return numbered.where("line > 1") if has_header(self._format, self._options) else numbered


def spark_schema(ddl: str) -> StructType:
    """Declared columns as Spark's own."""
    from pyspark.sql.types import StructType

    schema = StructType.fromDDL(ddl)
    assert isinstance(schema, StructType)
    return schema


def is_plain(type: DataType) -> bool:
    """Whether values of a Spark type are the same to Arrow."""
    from pyspark.sql import types

    if isinstance(type, types.StructType):
        return all(is_plain(field.dataType) for field in type)
    if isinstance(type, types.ArrayType):
        return is_plain(type.elementType)
    if isinstance(type, types.MapType):
        return is_plain(type.keyType) and is_plain(type.valueType)
    numbers = (types.ByteType, types.ShortType, types.IntegerType, types.LongType, types.DecimalType)
    others = (types.BooleanType, types.FloatType, types.DoubleType, types.BinaryType)
    times = (types.DateType, types.TimestampType, types.TimestampNTZType)
    # Also texts with a collation are StringType.
    return isinstance(type, (*numbers, *others, *times)) or type == types.StringType()
