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
from holdfast.connectors.files.locations import Directory, literal
from holdfast.connectors.files.reasons import RowForm, with_reasons
from holdfast.connectors.files.sampling import has_header, option

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

_BAD = "__hf_malformed"
_LETTERS_DDL = "file string, line long, row string, reason string"

FileColumns = tuple[str, ...] | None
"""The columns of a file in their order; None: those that are declared."""


class Sifter:
    """The rows of one slice: files of one format, and which columns each has."""

    def __init__(
        self,
        spark: SparkSession,
        directory: Directory,
        format: str,
        schema: StructType,
        options: Mapping[str, str],
        files: Mapping[str, FileColumns],
    ) -> None:
        self._spark, self._directory, self._format = spark, directory, format
        self._schema, self._options, self._files = schema, options, files

    def lenient(self, mode: str) -> DataFrame:
        """The rows as Spark's parser has them in a mode that its user chose."""
        return self._parsed(mode).drop(_BAD)

    def strict(self) -> DataFrame:
        """The rows. A job over them fails with MALFORMED where one does not fit."""
        from pyspark.sql import Observation
        from pyspark.sql.functions import count_if, lit, raise_error, when

        if self._format == "parquet" and all(field.nullable for field in self._schema):
            # Nothing can be malformed, so Spark may leave unread what is not needed.
            return self._parsed().drop(_BAD)
        checked = when(self._fits(), lit(True)).otherwise(raise_error(lit(MALFORMED)).cast("boolean"))
        rows = self._parsed().where(checked)
        return rows.observe(Observation(), count_if(self._all_empty()).alias("empty")).drop(_BAD)

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

        return Sifted(rows.where(self._fits()).drop(_BAD), observed)

    def letters(self, prefix: str) -> DataFrame:
        """The rows that do not fit: file, line, row, reason. `prefix` goes before the names of files."""
        bad = self._bad()
        found = self._unplaced(bad) if self._spans_lines() else self._placed(bad)
        types = {field.name: field.dataType.simpleString() for field in self._schema}
        never_null = tuple(field.name for field in self._schema if not field.nullable)
        form = RowForm(self._format, dict(self._options), types, never_null)
        return found.mapInArrow(partial(with_reasons, form, prefix), _LETTERS_DDL)

    def _parsed(self, mode: str = "PERMISSIVE", *also: str) -> DataFrame:
        """The declared columns, and the text of rows that could not be parsed; `also`: further expressions
        over a file's rows."""
        groups: dict[FileColumns, list[str]] = {}
        for name, columns in self._files.items():
            groups.setdefault(columns if has_header(self._format, self._options) else None, []).append(name)
        frames = [self._group(columns, names, mode, also) for columns, names in groups.items()]
        return reduce(lambda one, other: one.unionByName(other), frames)

    def _group(self, columns: FileColumns, names: Sequence[str], mode: str, also: Sequence[str]) -> DataFrame:
        """The rows of files that have the same columns."""
        from pyspark.sql.functions import array, col, expr, lit
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
        marked = [StructField(_BAD, StringType())] if text else []
        frame = self._read(self._format, names, StructType([*fields, *marked]), mode if text else None)
        there = {field.name.casefold(): field.name for field in fields}
        chosen = [
            (col(_quoted(there[key])) if key in there else lit(None).cast(field.dataType)).alias(field.name)
            for key, field in declared.items()
        ]
        mark = (col(_BAD) if text else lit(None).cast("string")).alias(_BAD)
        more = [expr(each) for each in also]
        if also:
            more.append(array(*(lit(field.name) for field in fields)).alias("__hf_columns"))
        return frame.select(*chosen, mark, *more)

    def _read(
        self, format: str, names: Sequence[str], schema: StructType | None, mode: str | None
    ) -> DataFrame:
        # A session that ignores missing or corrupt files would drop rows in silence: overruled per read.
        options = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}
        if mode is not None:
            options |= {"mode": mode, "columnNameOfCorruptRecord": _BAD}
        if has_header(format, self._options):
            # Without it Spark takes columns by position, whatever the header says.
            options["enforceSchema"] = "false"
        own = self._options if schema is not None else _kept(self._options, "lineSep")
        reader = self._spark.read.format(format).options(
            **{**options, **self._directory.options(names), **own}
        )
        if schema is not None:
            reader = reader.schema(schema)
        return reader.load([literal(self._directory.spark_path(name)) for name in names])

    def _fits(self) -> Column:
        from pyspark.sql.functions import col

        needed = [col(_quoted(field.name)).isNotNull() for field in self._schema if not field.nullable]
        return reduce(and_, needed, col(_BAD).isNull())

    def _all_empty(self) -> Column:
        """True of a row without values. Counting it takes every column."""
        from pyspark.sql.functions import col

        return reduce(and_, [col(_quoted(field.name)).isNull() for field in self._schema])

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

        rows = self._parsed("PERMISSIVE", "_metadata.file_name as __hf_file").where(~self._fits())
        names = [field.name for field in self._schema]
        empty = [when(col(_quoted(name)).isNull(), lit(name)) for name in names]
        return rows.select(
            col("__hf_file").alias("file"),
            make_valid_utf8(col(_BAD)).alias("row"),
            to_json(struct(*(col(_quoted(name)) for name in names))).alias("seen"),
            array_compact(array(*empty)).alias("empty"),
            when(col(_BAD).isNotNull(), col("__hf_columns")).alias("columns"),
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
        """Every line of the files: file, line, row. Spark numbers rows within its partitions only, so the
        lines before each block of a file are added."""
        from pyspark.sql import Window
        from pyspark.sql.functions import (
            broadcast,
            coalesce,
            col,
            count,
            lit,
            make_valid_utf8,
            min,
            monotonically_increasing_id,
            sum,
        )

        text = self._read("text", list(self._files), None, None).select(
            col("_metadata.file_name").alias("file"),
            col("_metadata.file_block_start").alias("block"),
            monotonically_increasing_id().alias("at"),
            make_valid_utf8("value").alias("row"),
        )
        blocks = text.groupBy("file", "block").agg(count(lit(1)).alias("lines"), min("at").alias("first"))
        earlier = Window.partitionBy("file").orderBy("block").rowsBetween(Window.unboundedPreceding, -1)
        before = coalesce(sum("lines").over(earlier), lit(0))
        shifts = blocks.select("file", "block", (before - col("first") + 1).alias("shift"))
        numbered = text.join(broadcast(shifts), ["file", "block"]).selectExpr(
            "file", "at + shift as line", "row"
        )
        # A header is no row, also where a row has the same text.
        return numbered.where("line > 1") if has_header(self._format, self._options) else numbered


def spark_schema(ddl: str) -> StructType:
    """Declared columns as Spark's own."""
    from pyspark.sql.types import StructType

    schema = StructType.fromDDL(ddl)
    assert isinstance(schema, StructType)
    return schema


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _kept(options: Mapping[str, str], *names: str) -> dict[str, str]:
    wanted = {name.lower() for name in names}
    return {key: value for key, value in options.items() if key.lower() in wanted}
