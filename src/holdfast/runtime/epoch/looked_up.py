"""Frames of lookups: the table as the user gives it, and the rows of a stream joined with a copy of it."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from holdfast.errors import DefinitionError, first_line
from holdfast.graph.job_graph import LookupNode, Mistake, describe
from holdfast.graph.lookups import table_columns
from holdfast.state.encoding.routing import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_KEY = "__hf_key_"


def table_frame(node: LookupNode, spark: SparkSession) -> DataFrame:
    """The table as it is now, nothing of it read. DefinitionError: there is none, or it cannot be copied."""
    from pyspark.sql import DataFrame

    try:
        given = spark.read.parquet(node.table) if isinstance(node.table, str) else node.table(spark)
    except Exception as cause:
        told = f"its table cannot be read ({type(cause).__name__}: {first_line(cause)})"
        raise _refused(node, told, "see that it is there, and that this machine may read it") from cause
    if not isinstance(given, DataFrame):
        raise _refused(node, f"its function gave back {type(given).__name__}", "give back a DataFrame")
    if given.isStreaming:
        raise _refused(
            node,
            "its table is a stream, of which there is no copy",
            "read it with spark.read, or join streams",
        )
    names = [name.lower() for name in given.columns]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise _refused(node, f"its table has the column {twice[0]!r} twice", "rename one")
    return given


def looked_up(node: LookupNode, stream: DataFrame, table: DataFrame) -> DataFrame:
    """The rows of a stream, each with the rows of the table that have its key. DefinitionError: two columns
    would have the same name."""
    try:
        added = table_columns(node, stream.columns, table.columns)
    except DefinitionError as error:
        raise DefinitionError(str(Mistake.of_text(node.place, describe(node), str(error)))) from error
    keys = [f"{_KEY}{number}" for number in range(len(node.on))]
    partners = table.select(
        *(table[quoted(own)].alias(key) for key, (_, own) in zip(keys, node.on, strict=True)),
        *(table[quoted(name)].alias(free) for name, free in added.items()),
    )
    equal: list[Column] = [
        stream[quoted(ours)] == partners[key] for key, (ours, _) in zip(keys, node.on, strict=True)
    ]
    joined = stream.join(partners, reduce(lambda one, other: one & other, equal), node.how)
    return joined.select(*map(quoted, (*stream.columns, *added.values())))


def _refused(node: LookupNode, problem: str, remedy: str) -> DefinitionError:
    return DefinitionError(str(Mistake(node.place, describe(node), problem, remedy)))
