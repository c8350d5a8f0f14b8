"""Rows that came from a server as names and bytes, turned into declared columns by Spark.

Always true: whether a row fits depends on the row and the schema alone; every row is in `strict` or fails it;
every row is in `sifted` or, once, in `letters`. A value that does not fit is never a null in silence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from holdfast.connectors.contract import MALFORMED, MalformedRow, Sifted
from holdfast.errors import DefinitionError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

RAW_SCHEMA: Final = pa.schema(
    [
        ("place", pa.string()),
        ("origin", pa.string()),
        ("id", pa.string()),
        ("fields", pa.map_(pa.string(), pa.binary())),
    ]
)
RAW_DDL: Final = "place string, origin string, id string, fields map<string, binary>"
"""What a row is before it has columns: where it is, for a person; what it came from (a stream, a queue); its
id there; its values by name."""

FORMATS: Final = ("fields", "json")
_BAD, _ROW = "__hf_malformed", "__hf_row"


@dataclass(frozen=True)
class RowForm:
    """How the columns of `schema` are found in a row: each in the field of its name ("fields"), or all in one
    field that holds JSON ("json"). `told`: columns that get what is known of the row besides ("origin", "id")
    by name."""

    schema: str
    format: str = "fields"
    json_field: str = "value"
    told: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise DefinitionError(f"format={self.format!r} is not known; use one of {', '.join(FORMATS)}")

    def strict(self, raw: DataFrame) -> DataFrame:
        """The rows. A job over them fails with MALFORMED where one does not fit."""
        from pyspark.sql import Observation
        from pyspark.sql.functions import col, count, lit, raise_error, when

        fits = when(col(_BAD).isNull(), lit(True)).otherwise(raise_error(lit(MALFORMED)).cast("boolean"))
        # Behind a count, which Spark's optimiser moves nothing past: not a filter that refuses the row first.
        rows = self._parsed(raw).where(fits).observe(Observation(), count(lit(1)).alias("rows"))
        return rows.select(*self._names())

    def sifted(self, raw: DataFrame) -> Sifted:
        from pyspark.sql import Observation
        from pyspark.sql.functions import col, count, count_if, lit

        seen = Observation()
        counts = (count(lit(1)).alias("rows"), count_if(col(_BAD).isNotNull()).alias("malformed"))
        rows = self._parsed(raw).observe(seen, *counts)

        def observed() -> tuple[int, int]:
            told = seen.get
            return told["rows"], told["malformed"]

        return Sifted(rows.where(col(_BAD).isNull()).select(*self._names()), observed)

    def letters(self, raw: DataFrame) -> DataFrame:
        """The rows that do not fit: `file string, line long, row string, reason string`."""
        from pyspark.sql.functions import col

        bad = self._parsed(raw).where(col(_BAD).isNotNull())
        return bad.selectExpr(
            "place as file", "cast(null as long) as line", f"{_ROW} as row", f"{_BAD} as reason"
        )

    def first_letter(self, raw: DataFrame) -> MalformedRow | None:
        found = self.letters(raw).first()
        return None if found is None else MalformedRow(found.file, found.file, None, found.row, found.reason)

    def _parsed(self, raw: DataFrame) -> DataFrame:
        """The declared columns, what does not fit about each row (null: it fits), and its text."""
        from pyspark.sql.functions import coalesce, col, lit, when

        schema = self._checked()
        given = [name for name in schema.names if name not in self.told]
        values = self._json(raw, schema, given) if self.format == "json" else self._fields(raw, schema, given)
        told = {name: col(source).alias(name) for name, source in self.told.items()}
        columns = [told[name] if name in told else values.columns[name].alias(name) for name in schema.names]
        empty = [
            when(column.isNull(), lit(f"{name} has no value"))
            for name, column in values.columns.items()
            if not schema[name].nullable
        ]
        bad = coalesce(*values.reasons, *empty, lit(None).cast("string"))
        return values.frame.select("place", *columns, bad.alias(_BAD), values.text.alias(_ROW))

    def _fields(self, raw: DataFrame, schema: StructType, given: list[str]) -> _Values:
        from pyspark.sql.functions import col, expr, lit, to_json, try_validate_utf8, when
        from pyspark.sql.types import BinaryType

        columns, reasons = {}, []
        for name in given:
            bytes_of, type = col("fields")[name], schema[name].dataType
            if isinstance(type, BinaryType):
                columns[name] = bytes_of
                continue
            columns[name] = try_validate_utf8(bytes_of.cast("string")).try_cast(type)
            wrong = bytes_of.isNotNull() & columns[name].isNull()
            reasons.append(when(wrong, lit(f"{name} is not a {type.simpleString()}")))
        text = to_json(expr("transform_values(fields, (k, v) -> make_valid_utf8(cast(v as string)))"))
        return _Values(raw, columns, reasons, text)

    def _json(self, raw: DataFrame, schema: StructType, given: list[str]) -> _Values:
        from pyspark.sql.functions import col, from_json, lit, make_valid_utf8, try_validate_utf8, when
        from pyspark.sql.types import StringType, StructField, StructType

        bytes_of = col("fields")[self.json_field]
        # Nullable here: Spark's parser takes no notice, and a value that is missing gets a reason below.
        inside = [StructField(name, schema[name].dataType) for name in given]
        corrupt = StructField(_BAD, StringType())
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _BAD}
        parsed = from_json(
            try_validate_utf8(bytes_of.cast("string")), StructType([*inside, corrupt]), options
        )
        frame = raw.withColumn("__hf_parsed", parsed)
        columns = {name: col("__hf_parsed").getField(name) for name in given}
        reasons = [
            when(bytes_of.isNull(), lit(f"there is no field {self.json_field}")),
            when(col("__hf_parsed").isNull(), lit("it is not JSON in UTF-8")),
            when(col("__hf_parsed").getField(_BAD).isNotNull(), lit("its JSON does not fit the columns")),
            when(~is_one_value(bytes_of.cast("string")), lit("there is more after its JSON")),
        ]
        return _Values(frame, columns, reasons, make_valid_utf8(bytes_of.cast("string")))

    def _checked(self) -> StructType:
        from pyspark.sql.types import ArrayType, MapType, StringType, StructType

        schema = StructType.fromDDL(self.schema)
        assert isinstance(schema, StructType)
        for name in self.told:
            if name not in schema.names or not isinstance(schema[name].dataType, StringType):
                raise DefinitionError(
                    f"the schema '{self.schema}' has no column `{name} string`, which is to hold the "
                    f"{self.told[name]} of each row; declare it"
                )
        nested = [f.name for f in schema if isinstance(f.dataType, StructType | ArrayType | MapType)]
        if nested and self.format == "fields":
            raise DefinitionError(
                f"column {nested[0]} of '{self.schema}' cannot be had from one field; use format='json'"
            )
        return schema

    def _names(self) -> list[str]:
        return [f"`{name}`" for name in self._checked().names]


def is_one_value(text: Column) -> Column:
    """Whether a text is one JSON value alone. Spark's parser reads the first and leaves the rest unseen: of
    two objects in one message the second would be lost in silence."""
    from pyspark.sql.functions import coalesce, concat, from_json, json_array_length, lit, size

    listed = concat(lit("["), text, lit("]"))
    # The first takes the least time and knows no NaN; the second takes what the parser of rows does.
    return coalesce(
        (json_array_length(listed) == 1) | (size(from_json(listed, "array<string>")) == 1), lit(False)
    )


@dataclass(frozen=True)
class _Values:
    """Columns over `frame`, by name; of each row what does not fit (null where it does), and its text."""

    frame: DataFrame
    columns: dict[str, Column]
    reasons: list[Column]
    text: Column


def raw_rows(origin: str, rows: Sequence[tuple[str, str | None, Mapping[str, bytes]]]) -> pa.RecordBatch:
    """Rows from one origin: of each its place, its id and its values."""
    places, ids, fields = zip(*rows, strict=True) if rows else ((), (), ())
    # The map is put together from its parts: Arrow is slow to make one of Python's own pairs.
    ends = np.cumsum([0, *map(len, fields)], dtype=np.int32)
    names = pa.array([name for each in fields for name in each], pa.string())
    values = pa.array([value for each in fields for value in each.values()], pa.binary())
    return pa.RecordBatch.from_arrays(
        [
            pa.array(places, pa.string()),
            pa.repeat(pa.scalar(origin, pa.string()), len(places)),
            pa.array(ids, pa.string()),
            pa.MapArray.from_arrays(pa.array(ends), names, values),
        ],
        schema=RAW_SCHEMA,
    )
