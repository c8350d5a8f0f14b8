"""The rows of planned files as Spark's DataFrames: read by Spark, or in a bucket by tasks.

Spark needs a jar of Hadoop's and settings of its own to read a bucket. Tasks read it with the client and the
credentials that the checkpoint is kept with, and give Spark lines to parse: with the same parsers
(`from_json`, `from_csv`), so that the same rows fit wherever a file is.
Always true: exactly the files that are named are read, whole, or the job fails.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from holdfast.connectors.files.extents import Extent, dealt, pieces
from holdfast.connectors.files.object_files import TextForm, parquet_rows, splittable, text_rows
from holdfast.connectors.files.sampling import has_header, option

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

BAD = "__hf_malformed"
"""The column of rows that could not be parsed: their text."""
FILE = "__hf_file"
"""The column of the file of a row: its name, quoted as in a URL."""

_TASK_OPTIONS = {"encoding", "charset", "linesep", "multiline", "header", "comment", "enforceschema"}
"""What is done before Spark parses a line."""


class FileFrames(Protocol):
    """The files of one slice, of one format."""

    def parsed(
        self, names: Sequence[str], schema: StructType, mode: str | None, with_file: bool
    ) -> DataFrame:
        """The columns of the schema, BAD among them if `mode` is not None; with FILE if asked for."""

    def lines(self, names: Sequence[str]) -> DataFrame:
        """Every line: `file`, `line`, `row`."""


@dataclass(frozen=True)
class SparkFrames:
    """Files that Spark reads by itself. `own`: options that it needs for that."""

    spark: SparkSession
    format: str
    options: Mapping[str, str]
    paths: Mapping[str, str]
    own: Mapping[str, str]

    def parsed(
        self, names: Sequence[str], schema: StructType, mode: str | None, with_file: bool
    ) -> DataFrame:
        from pyspark.sql.functions import col

        frame = self._read(self.format, names, schema, mode)
        return frame.withColumn(FILE, col("_metadata.file_name")) if with_file else frame

    def lines(self, names: Sequence[str]) -> DataFrame:
        """Spark numbers rows within its partitions only, so the lines before each block of a file are
        added."""
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

        text = self._read("text", names, None, None).select(
            col("_metadata.file_name").alias("file"),
            col("_metadata.file_block_start").alias("block"),
            monotonically_increasing_id().alias("at"),
            make_valid_utf8("value").alias("row"),
        )
        blocks = text.groupBy("file", "block").agg(count(lit(1)).alias("lines"), min("at").alias("first"))
        earlier = Window.partitionBy("file").orderBy("block").rowsBetween(Window.unboundedPreceding, -1)
        before = coalesce(sum("lines").over(earlier), lit(0))
        shifts = blocks.select("file", "block", (before - col("first") + 1).alias("shift"))
        return text.join(broadcast(shifts), ["file", "block"]).selectExpr("file", "at + shift as line", "row")

    def _read(
        self, format: str, names: Sequence[str], schema: StructType | None, mode: str | None
    ) -> DataFrame:
        # A session that ignores missing or corrupt files would drop rows in silence: overruled per read.
        options = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}
        if mode is not None:
            options |= {"mode": mode, "columnNameOfCorruptRecord": BAD}
        if has_header(format, self.options):
            # Without it Spark takes columns by position, whatever the header says.
            options["enforceSchema"] = "false"
        own = self.options if schema is not None else _kept(self.options, "lineSep")
        reader = self.spark.read.format(format).options(**{**options, **self.own, **own})
        if schema is not None:
            reader = reader.schema(schema)
        return reader.load([literal(self.paths[name]) for name in names])


@dataclass(frozen=True)
class ObjectFrames:
    """Files in a bucket, with their sizes."""

    spark: SparkSession
    format: str
    options: Mapping[str, str]
    url: str
    sizes: Mapping[str, int]

    def parsed(
        self, names: Sequence[str], schema: StructType, mode: str | None, with_file: bool
    ) -> DataFrame:
        if self.format == "parquet":
            return self._parquet(names, schema, with_file)
        values = self._text(names, replace(self._form(), placed=with_file))
        return self._columns(values, schema, mode or "PERMISSIVE", with_file)

    def lines(self, names: Sequence[str]) -> DataFrame:
        form = replace(self._form(), whole=False, header=False, comment=b"", arrays=False)
        numbered = self._text(names, replace(form, blank=True, placed=True))
        return numbered.selectExpr("file", "line", "make_valid_utf8(value) as row")

    def _form(self) -> TextForm:
        encoding = option(self.options, "encoding", "charset", default="UTF-8")
        separator = option(self.options, "lineSep")
        return TextForm(
            encoding=encoding,
            separator=b"" if separator in ("\n", "\r\n", "\r") else separator.encode(),
            whole=option(self.options, "multiLine").lower() == "true",
            header=has_header(self.format, self.options),
            comment=option(self.options, "comment").encode() if self.format == "csv" else b"",
            arrays=self.format == "json",
        )

    def _text(self, names: Sequence[str], form: TextForm) -> DataFrame:
        extents = [
            piece
            for name in names
            for piece in (pieces(name, self.sizes[name]) if splittable(name, form) else [Extent(name)])
        ]
        tasks = dealt(extents, self.sizes)
        ddl = "file string, line long, value binary" if form.placed else "value binary"
        rows = self._tasks(len(tasks)).mapInArrow(partial(text_rows, self.url, form, tasks), ddl)
        return rows.withColumn("value", rows["value"].cast("string"))

    def _columns(self, values: DataFrame, schema: StructType, mode: str, with_file: bool) -> DataFrame:
        from pyspark.sql.functions import coalesce, col, from_csv, from_json, is_valid_utf8, when

        own = {name: value for name, value in self.options.items() if name.lower() not in _TASK_OPTIONS}
        options = {**own, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": BAD}
        if self.format == "json":
            # Bytes that are no text Spark would mend here, and does not in files of its own.
            parsed = when(is_valid_utf8("value"), from_json("value", schema, options))
        else:
            ddl = ", ".join(f"{quoted(field.name)} {field.dataType.simpleString()}" for field in schema)
            parsed = from_csv("value", ddl, options)
        # What is no object at all has no columns and no mark.
        bad = when(col("parsed").isNull(), col("value"))
        rows = values.withColumn("parsed", parsed)
        fields = [col(f"parsed.{quoted(field.name)}") for field in schema if field.name != BAD]
        mark = coalesce(col(f"parsed.{BAD}"), bad).alias(BAD)
        frame = rows.select(*fields, mark, *([col("file").alias(FILE)] if with_file else []))
        return frame.where(col(BAD).isNull()) if mode == "DROPMALFORMED" else frame

    def _parquet(self, names: Sequence[str], schema: StructType, with_file: bool) -> DataFrame:
        from pyspark.sql.types import StringType, StructField, StructType

        wanted = StructType([*schema, StructField(FILE, StringType())]) if with_file else schema
        columns = self.spark.createDataFrame([], wanted).toArrow().schema
        tasks = dealt([piece for name in names for piece in pieces(name, self.sizes[name])], self.sizes)
        body = partial(parquet_rows, self.url, columns, FILE if with_file else None, tasks)
        return self._tasks(len(tasks)).mapInArrow(body, wanted)

    def _tasks(self, count: int) -> DataFrame:
        return self.spark.range(0, count, 1, max(1, count))


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def literal(path: str) -> str:
    """A path as Spark's reader takes it literally: it expands glob characters."""
    return "".join(f"\\{char}" if char in "\\*?[]{}" else char for char in path)


def _kept(options: Mapping[str, str], *names: str) -> dict[str, str]:
    wanted = {name.lower() for name in names}
    return {key: value for key, value in options.items() if key.lower() in wanted}
