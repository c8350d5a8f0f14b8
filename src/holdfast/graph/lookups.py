"""A join of a stream with a table that changes slowly: what is declared, and which columns it gives.

Rows of the stream meet the rows of one stored copy of the table, which the plan of the epoch names. Rows of
the table that have the same key all match, as in SQL.
Never here: copying the table, and choosing the copy (see runtime.epoch.lookups).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from holdfast.clock import duration_ms
from holdfast.errors import DefinitionError
from holdfast.graph.job_graph import LookupNode, shown
from holdfast.graph.time_joins import RIGHT_SUFFIX, how_remedy, is_pair
from holdfast.state.encoding.types import type_ddl

LOOKUP_HOWS = ("inner", "left")


def key_pairs(on: Any) -> tuple[tuple[str, str], ...]:
    """The columns that are compared, of the stream and of the table: of 'k', ('k', 'id'), or a list of
    these. What is neither is left as it is, for `lookup_mistakes` to name."""
    given: Sequence[Any] = on if isinstance(on, list) else [on]
    return tuple((each, each) if isinstance(each, str) else each for each in given)


def table_columns(node: LookupNode, stream: Sequence[str], table: Sequence[str]) -> dict[str, str]:
    """The columns of the table that are added to those of the stream -> the names that they get there.
    Spark's names are the same in either case."""
    taken = {name.lower() for name in stream}
    keys = {own for _, own in node.on}
    added = {
        name: name + RIGHT_SUFFIX if name.lower() in taken else name for name in table if name not in keys
    }
    every = [*taken, *(name.lower() for name in added.values())]
    for name in added.values():
        if every.count(name.lower()) > 1:
            raise DefinitionError(
                f"its output would have the column {name!r} twice; rename one in a transform(...)"
            )
    return added


def lookup_mistakes(node: LookupNode) -> Iterator[tuple[str, str]]:
    """What is wrong with what was given, and what to do."""
    table: object = node.table
    if not callable(table) and not (isinstance(table, str) and table):
        yield (
            f"{shown(table)} is not a table",
            "give a function from a Spark session to a DataFrame, or the path of Parquet files",
        )
    if node.how not in LOOKUP_HOWS:
        yield f"how={node.how!r} is not known", how_remedy(node.how, LOOKUP_HOWS)
    wrong = [each for each in node.on if not is_pair(each)]
    if wrong or not node.on:
        named = repr(wrong[0]) if wrong else "on=[]"
        yield f"{named} does not name a column of each side", "give 'k', ('k', 'id'), or a list of these"
    refresh: object = node.refresh
    try:
        if not isinstance(refresh, str) or duration_ms(refresh) < 1:
            yield f"refresh={refresh!r} is no time at all", "write a duration such as '1h'"
    except DefinitionError as error:
        problem, _, remedy = str(error).rpartition("; ")
        yield f"refresh: {problem}", remedy


def key_mistakes(node: LookupNode, stream: pa.Schema, table: pa.Schema | None) -> Iterator[tuple[str, str]]:
    """What is wrong with the columns that are compared, and what to do. `table`: None, not known yet."""
    for ours, theirs in node.on:
        for what, schema, name in (("stream", stream, ours), ("table", table, theirs)):
            if schema is not None and name not in schema.names:
                names = ", ".join(schema.names)
                yield f"the {what} has no column {name!r}; there are {names}", "name one of these"
        if table is None or ours not in stream.names or theirs not in table.names:
            continue
        one, other = type_ddl(stream.field(ours).type), type_ddl(table.field(theirs).type)
        if one != other:
            yield (
                f"column {ours!r} of the stream is {one}, {theirs!r} of the table is {other}",
                "cast one of them, in a transform(...) or in the function that gives the table",
            )
