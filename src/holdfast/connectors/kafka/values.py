"""What a message's value is: bytes, or JSON or Avro that has to fit a schema; and the rows of a slice by it.

JSON is read by Spark's own parser, as from files. A value that is not there (null, a tombstone) always fits.
Always true: whether a value fits depends on the value and the schema alone; every row is in `strict` or fails
it; every row is in `sifted` or, once, in `letters`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial, reduce
from operator import or_
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.connectors.contract import MALFORMED, Sifted
from holdfast.connectors.kafka.avro import BAD, RAW_VALUE, AvroValues
from holdfast.connectors.misfits import json_misfit, missing_value
from holdfast.connectors.received_rows import is_one_value

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_FITS_NOT = "__hf_fits_not"
_LETTERS_DDL = "file string, line long, row string, reason string"
_LETTERS = pa.schema(
    [("file", pa.string()), ("line", pa.int64()), ("row", pa.string()), ("reason", pa.string())]
)
_BEFORE = "key binary, "
_AFTER = (
    ", headers array<struct<key:string,value:binary>>, timestamp timestamp, partition int, offset long, "
    "topic string"
)
PARTITION_COLUMN = "topic_partition"


@dataclass(frozen=True)
class ValueForm:
    """`format` is bytes, json (`schema`: columns as Spark SQL) or avro (`schema`: Avro's, as JSON)."""

    format: str
    schema: str = ""

    @property
    def columns(self) -> str:
        """All columns of the source."""
        return f"{_BEFORE}value {self._type}{_AFTER}, {PARTITION_COLUMN} string"

    @property
    def read_columns(self) -> str:
        """What tasks give."""
        if self.format == "avro":
            return f"{_BEFORE}value {self._type}, {RAW_VALUE} binary, {BAD} string{_AFTER}"
        return f"{_BEFORE}value binary{_AFTER}"

    @property
    def decode(self) -> AvroValues | None:
        return AvroValues(self.schema) if self.format == "avro" else None

    @property
    def _type(self) -> str:
        if self.format == "json":
            return f"struct<{self.schema}>"
        return self.decode.type[0] if self.decode is not None else "binary"


class ValueRows:
    """The rows of one slice, as its form has them."""

    def __init__(self, form: ValueForm, read: DataFrame) -> None:
        self._form, self._read = form, read

    def strict(self) -> DataFrame:
        """The rows. A job over them fails with MALFORMED where one does not fit."""
        from pyspark.sql import Observation
        from pyspark.sql.functions import col, count_if, lit, raise_error, when

        if self._form.format == "bytes":
            return self._finished(self._read)
        # Behind a count: Spark's optimiser moves nothing past it, so that values are parsed once, and all.
        counted = self._marked().observe(Observation(), count_if(col(_FITS_NOT)).alias("malformed"))
        checked = when(~col(_FITS_NOT), lit(True)).otherwise(raise_error(lit(MALFORMED)).cast("boolean"))
        return self._finished(counted.where(checked))

    def sifted(self) -> Sifted:
        """The rows that fit, and how many did not."""
        from pyspark.sql import Observation
        from pyspark.sql.functions import col, count, count_if, lit

        seen = Observation()
        counts = (count(lit(1)).alias("rows"), count_if(col(_FITS_NOT)).alias("malformed"))
        rows = self._marked().observe(seen, *counts).where(~col(_FITS_NOT))

        def observed() -> tuple[int, int]:
            told = seen.get
            return told["rows"], told["malformed"]

        return Sifted(self._finished(rows), observed)

    def letters(self) -> DataFrame:
        """The rows that do not fit: topic and partition, offset, value, reason."""
        from pyspark.sql.functions import array, array_compact, col, hex, lit, make_valid_utf8, when

        bad = self._marked().where(col(_FITS_NOT))
        place = [col(PARTITION_COLUMN).alias("file"), col("offset").alias("line")]
        if self._form.format == "avro":
            return bad.select(*place, hex(RAW_VALUE).alias("row"), col(BAD).alias("reason"))
        fields = self._fields()
        empty = [when(col("value").getField(each.name).isNull(), lit(each.name)) for each in fields]
        types = {each.name: each.dataType.simpleString() for each in fields}
        never_null = tuple(each.name for each in fields if not each.nullable)
        found = bad.select(
            *place,
            make_valid_utf8(col(RAW_VALUE).cast("string")).alias("row"),
            array_compact(array(*empty)).alias("empty"),
            col(BAD).isNull().alias("parsed"),
        )
        return found.mapInArrow(partial(_with_reasons, types, never_null), _LETTERS_DDL)

    def _fields(self) -> Any:
        from pyspark.sql.types import StructType

        schema = StructType.fromDDL(self._form.schema)
        assert isinstance(schema, StructType)
        return schema.fields

    def _marked(self) -> DataFrame:
        """With `value` parsed, its bytes beside it, and whether it does not fit."""
        from pyspark.sql.functions import col, concat_ws

        frame = self._read.withColumn(PARTITION_COLUMN, concat_ws("-", "topic", "partition"))
        if self._form.format == "avro":
            return frame.withColumn(_FITS_NOT, col(BAD).isNotNull())
        return self._parsed(frame)

    def _parsed(self, frame: DataFrame) -> DataFrame:
        from pyspark.sql.functions import col, from_json
        from pyspark.sql.types import StringType, StructField, StructType

        schema = StructType([*self._fields(), StructField(BAD, StringType())])
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": BAD}
        text = col(RAW_VALUE).cast("string")
        whole = from_json(text, schema, options)
        parsed = frame.withColumnRenamed("value", RAW_VALUE).withColumn("__hf_whole", whole)
        misfit = col("__hf_whole").isNull() | self._misfit(col("__hf_whole")) | ~is_one_value(text)
        return (
            parsed.withColumn(_FITS_NOT, col(RAW_VALUE).isNotNull() & misfit)
            .withColumn(BAD, col("__hf_whole").getField(BAD))
            .withColumn("value", col("__hf_whole").dropFields(BAD))
        )

    def _misfit(self, whole: Column) -> Column:
        needed = [whole.getField(each.name).isNull() for each in self._fields() if not each.nullable]
        return reduce(or_, needed, whole.getField(BAD).isNotNull())

    def _finished(self, frame: DataFrame) -> DataFrame:
        from pyspark.sql.functions import concat_ws

        if PARTITION_COLUMN not in frame.columns:
            frame = frame.withColumn(PARTITION_COLUMN, concat_ws("-", "topic", "partition"))
        return frame.select(
            "key", "value", "headers", "timestamp", "partition", "offset", "topic", PARTITION_COLUMN
        )


def _with_reasons(
    types: dict[str, str], never_null: tuple[str, ...], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The body of a task: malformed rows of JSON, each with its reason."""
    for batch in batches:
        reasons = []
        for row in batch.to_pylist():
            missing = [name for name in never_null if name in row["empty"]]
            if row["parsed"] and missing:
                reasons.append(missing_value(missing[0]))
            else:
                reasons.append(json_misfit(row["row"], row["empty"], types))
        columns = [*(batch.column(name) for name in ("file", "line", "row")), pa.array(reasons, pa.string())]
        yield pa.RecordBatch.from_arrays(columns, schema=_LETTERS)
