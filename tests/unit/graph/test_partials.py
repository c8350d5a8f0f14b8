"""Which aggregates can be combined before rows go to their shards."""

from __future__ import annotations

import pyarrow as pa
import pytest

from holdfast.graph import aggregates as hf
from holdfast.graph.aggregates import Aggregate, AggregateKind, Aggregation
from holdfast.graph.partials import ROWS_COLUMN, partials_of
from holdfast.state.encoding.types import parse_schema
from tests.unit.tasks.operators.test_aggregate_types import PAIRS, accepted

FIXED = (
    "boolean", "byte", "short", "int", "long", "float", "double", "decimal(10,2)", "decimal(38,0)",
    "decimal(38,38)", "date", "timestamp", "timestamp_ntz", "interval day to second",
)  # fmt: skip


def combined(kind: AggregateKind, ddl: str, *order_by: str) -> bool:
    rows = parse_schema(f"k string, v {ddl}, at long, b long, name string")
    return partials_of(Aggregation({"r": Aggregate(kind, "v")}), rows, order_by) is not None


@pytest.mark.parametrize(("kind", "ddl"), [pair for pair in PAIRS if accepted(*pair)])
def test_what_is_combined(kind: AggregateKind, ddl: str) -> None:
    """Everything that Spark aggregates in place, and no sum that could be too large for it."""
    if kind is AggregateKind.COLLECT:
        wanted = False
    elif kind in (AggregateKind.COUNT, AggregateKind.MEAN):
        wanted = True
    elif kind is AggregateKind.SUM:
        wanted = not ddl.startswith("decimal(38")
    else:
        wanted = ddl in FIXED
    assert combined(kind, ddl) is wanted


@pytest.mark.parametrize("kind", [AggregateKind.FIRST, AggregateKind.LAST])
def test_first_and_last_are_combined_in_the_order_of_one_column_of_fixed_width(kind: AggregateKind) -> None:
    found = [combined(kind, "long", *columns) for columns in ([], ["at"], ["at", "b"], ["name"])]
    assert found == [True, True, False, False]


def test_other_aggregates_are_combined_whatever_the_order() -> None:
    assert all(combined(kind, "long", "name", "at") for kind in (AggregateKind.SUM, AggregateKind.MAX))


def test_one_aggregate_that_cannot_be_combined_keeps_all_from_it() -> None:
    rows = pa.schema([("k", pa.string()), ("v", pa.int64())])
    both = Aggregation({"n": hf.count(), "all": hf.collect("v")})
    assert partials_of(both, rows, ()) is None


def test_names_are_quoted_and_partial_columns_are_named_by_number() -> None:
    rows = pa.schema([("k", pa.string()), ("a`b.c", pa.int32())])
    found = partials_of(Aggregation({"a-s": hf.sum("a`b.c"), "n": hf.count()}), rows, ())
    assert found is not None
    assert found.columns == {"a-s": ("__hf_0_sum",), "n": ("__hf_1_count",)}
    assert found.expressions == (
        f"count(1) as {ROWS_COLUMN}",
        "sum(cast(`a``b.c` as bigint)) as __hf_0_sum",
        "count(1) as __hf_1_count",
    )
