from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import DefinitionError, UserCodeError
from holdfast.graph import aggregates as hf
from holdfast.graph.aggregates import Aggregation
from holdfast.graph.partials import Partials, partials_of
from tests.unit.tasks.operators.operator_kit import Harness

ROWS = pa.schema([("k", pa.string()), ("v", pa.int64())])


def over(type: pa.DataType, *, order_by: tuple[str, ...] = (), **aggregates: hf.Aggregate) -> Harness:
    schema = pa.schema([("k", pa.string()), ("v", type), ("at", pa.int64())])
    return Harness(Aggregation(aggregates), schema, ["k"], order_by=order_by)


def test_aggregates_equal_those_over_all_rows_of_all_epochs() -> None:
    random.seed(3)
    job = Harness(
        Aggregation(
            {
                "n": hf.count(),
                "nv": hf.count("v"),
                "s": hf.sum("v"),
                "lo": hf.min("v"),
                "hi": hf.max("v"),
                "m": hf.mean("v"),
            }
        ),
        ROWS,
        ["k"],
    )
    seen: dict[str, list[int | None]] = {}
    for _ in range(4):
        rows = [
            (f"k{random.randrange(9)}", random.choice([None, random.randrange(-50, 50)])) for _ in range(30)
        ]
        for key, value in rows:
            seen.setdefault(key, []).append(value)
        expected = []
        for key in sorted({key for key, _ in rows}):
            some = [value for value in seen[key] if value is not None]
            edges = (sum(some), min(some), max(some), sum(some) / len(some)) if some else (None,) * 4
            expected.append((key, len(seen[key]), len(some), *edges))
        assert job.rows_of(rows) == expected


def test_each_touched_key_is_emitted_once_and_untouched_ones_never() -> None:
    job = Harness(Aggregation({"n": hf.count()}), ROWS, ["k"])
    job.epoch_of([("a", 1), ("b", 1)])
    assert job.rows_of([("b", 1), ("b", 1)]) == [("b", 3)]


def test_nulls_alone_give_null_and_a_later_value_counts() -> None:
    job = over(pa.int64(), s=hf.sum("v"), m=hf.mean("v"), lo=hf.min("v"), f=hf.first("v"), c=hf.collect("v"))
    assert job.rows_of([("a", None, 0)]) == [("a", None, None, None, None, [])]
    assert job.rows_of([("a", 4, 0)]) == [("a", 4, 4.0, 4, 4, [4])]
    assert job.rows_of([("a", None, 0)]) == [("a", 4, 4.0, 4, 4, [4])]


def test_first_last_and_collect_follow_order_by_across_epochs() -> None:
    job = over(pa.string(), order_by=("at",), f=hf.first("v"), l=hf.last("v"), c=hf.collect("v", limit=3))
    assert job.rows_of([("a", "y", 2), ("a", "x", 1), ("b", "q", 1)]) == [
        ("a", "x", "y", ["x", "y"]), ("b", "q", "q", ["q"]),
    ]  # fmt: skip
    assert job.rows_of([("a", "w", 9), ("a", None, 10), ("a", "v", 8)]) == [("a", "x", "w", ["y", "v", "w"])]


@pytest.mark.parametrize(
    ("type", "low", "high"),
    [
        (pa.int8(), -3, 100),
        (pa.float32(), -0.5, 2.0),
        (pa.float64(), float("-inf"), 2.0),
        (pa.string(), "a", "b"),
        (pa.binary(), b"a", b"b"),
        (pa.bool_(), False, True),
        (pa.date32(), dt.date(2020, 1, 1), dt.date(2021, 1, 1)),
        (pa.timestamp("us"), dt.datetime(2020, 1, 1), dt.datetime(2021, 1, 1)),
        (pa.decimal128(10, 2), Decimal("-1.00"), Decimal("2.50")),
    ],
)
def test_smallest_and_largest_of_every_ordered_type(type: pa.DataType, low: Any, high: Any) -> None:
    job = over(type, lo=hf.min("v"), hi=hf.max("v"))
    assert job.rows_of([("a", high, 0), ("b", low, 0)]) == [("a", high, high), ("b", low, low)]
    assert job.rows_of([("a", low, 0), ("b", high, 0)]) == [("a", low, high), ("b", low, high)]


@pytest.mark.parametrize(
    ("given", "sums"),
    [
        (pa.int8(), pa.int64()),
        (pa.int64(), pa.int64()),
        (pa.float32(), pa.float64()),
        (pa.decimal128(10, 2), pa.decimal128(20, 2)),
        (pa.decimal128(35, 4), pa.decimal128(38, 4)),
    ],
)
def test_result_types_are_sparks(given: pa.DataType, sums: pa.DataType) -> None:
    schema = pa.schema([("v", given)])
    assert hf.sum("v").result_type(schema) == sums
    assert hf.mean("v").result_type(schema) == pa.float64()
    assert hf.count("v").result_type(schema) == pa.int64()
    assert hf.max("v").result_type(schema) == given


def test_nan_counts_only_where_there_is_nothing_else() -> None:
    job = over(pa.float64(), lo=hf.min("v"), hi=hf.max("v"))
    assert str(job.rows_of([("a", float("nan"), 0)])) == "[('a', nan, nan)]"
    assert job.rows_of([("a", 1.0, 0)]) == [("a", 1.0, 1.0)]
    assert job.rows_of([("a", float("nan"), 0)]) == [("a", 1.0, 1.0)]


def test_decimal_sums_are_exact() -> None:
    job = over(pa.decimal128(10, 2), s=hf.sum("v"))
    big = Decimal("99999999.99")
    assert job.rows_of([("a", big, 0)] * 3) == [("a", big * 3)]
    assert job.rows_of([("a", Decimal("-0.01"), 0)]) == [("a", big * 3 - Decimal("0.01"))]


def test_sums_near_the_edge_of_long_are_exact() -> None:
    job = over(pa.int64(), s=hf.sum("v"))
    assert job.rows_of([("a", 2**62, 0), ("a", 2**62 - 1, 0)]) == [("a", 2**63 - 1)]
    assert job.rows_of([("a", -(2**63), 0), ("b", 5, 0)]) == [("a", -1), ("b", 5)]


@pytest.mark.parametrize("epochs", [[[2**62, 2**62]], [[2**62], [2**62]]])
def test_a_sum_that_overflows_fails_naming_key_and_aggregate(epochs: list[list[int]]) -> None:
    job = over(pa.int64(), s=hf.sum("v"))
    for values in epochs[:-1]:
        job.epoch_of([("b", 1, 0), *(("a", value, 0) for value in values)])
    with pytest.raises(UserCodeError, match="'s' is 9223372036854775808, too large for long") as caught:
        job.epoch_of([("b", 1, 0), *(("a", value, 0) for value in epochs[-1])])
    assert caught.value.key == "a"


def test_mistakes_name_the_aggregate_and_the_column() -> None:
    with pytest.raises(DefinitionError, match=r"sum\('w'\): there is no such column; there are k, v"):
        Aggregation({"s": hf.sum("w")}).state_fields(ROWS)
    with pytest.raises(DefinitionError, match=r"sum\('k'\) is over string"):
        Aggregation({"s": hf.sum("k")}).state_fields(ROWS)
    with pytest.raises(DefinitionError, match="'k' is named like a key column"):
        Aggregation({"k": hf.sum("v")}).output_schema(ROWS, ["k"])
    with pytest.raises(DefinitionError, match="'m__sum'"):
        Aggregation({"m": hf.mean("v"), "m__sum": hf.sum("v")}).state_fields(ROWS)


def test_no_rows_change_nothing() -> None:
    result = Harness(Aggregation({"n": hf.count()}), ROWS, ["k"]).epoch_of([])
    assert (result.outputs[""].num_rows, result.changes.values) == (0, {})


def merged(order_by: tuple[str, ...], rows: list[tuple[Any, ...]], **aggregates: hf.Aggregate) -> Harness:
    """A harness after an epoch of partial rows over `v long, at long`."""
    job = over(pa.int64(), order_by=order_by, **aggregates)
    partials = partials_of(job.function, job.schema, order_by)
    assert partials is not None
    merge(job, partials, rows)
    return job


def merge(job: Harness, partials: Partials, rows: list[tuple[Any, ...]]) -> Any:
    names = ["k", *(column for columns in partials.columns.values() for column in columns)]
    schema = pa.schema([(name, pa.string() if name == "k" else pa.int64()) for name in names])
    table = pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows], schema)
    return job.epoch_of_table(table, partials)


HALF = 1 << 32


def halves(value: int) -> tuple[int, int]:
    return divmod(value, HALF)


@pytest.mark.parametrize(
    "epochs",
    [
        [[2**62, 2**62, -1]],
        [[2**63 + 5, -6]],
        [[-(2**63) - 1, 2**63 - 1, 1]],
        [[2**63 - 1], [2**64, -(2**64)]],
        [[3, None], [None]],
        [[None, None]],
    ],
)
def test_sums_of_halves_are_exact_where_partial_sums_are_too_large_for_long(
    epochs: list[list[int | None]],
) -> None:
    job = over(pa.int64(), s=hf.sum("v"))
    partials = partials_of(job.function, job.schema, ())
    assert partials is not None
    for values in epochs:
        rows = [("a", *((None, None) if value is None else halves(value))) for value in values]
        found = merge(job, partials, rows).outputs[""]["s"].to_pylist()
    some = [value for values in epochs for value in values if value is not None]
    assert found == [sum(some) if some else None]


def test_a_sum_of_partial_rows_that_overflows_fails_naming_key_and_aggregate() -> None:
    with pytest.raises(UserCodeError, match="'s' is 9223372036854775808, too large for long") as caught:
        merged((), [("b", 0, 1), ("a", *halves(2**62)), ("a", *halves(2**62))], s=hf.sum("v"))
    assert caught.value.key == "a"


def test_first_and_last_of_partial_rows_follow_their_places_and_those_without_one_come_first() -> None:
    rows = [("a", 7, 9, 7, 9), ("a", 5, 3, 8, 12), ("a", None, None, None, None), ("b", 1, 4, 1, 4)]
    job = merged(("at",), rows, f=hf.first("v"), l=hf.last("v"))
    assert job.rows_of([("a", None, 0), ("b", 2, 0)]) == [("a", 5, 8), ("b", 1, 2)]
    job = merged(("at",), [*rows, ("a", 6, None, 6, None)], f=hf.first("v"), l=hf.last("v"))
    assert job.rows_of([("a", None, 0)]) == [("a", 6, 8)]
