"""Every aggregate over every type: right over several epochs, or refused when it is declared."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import DefinitionError, UserCodeError
from holdfast.graph import aggregates as hf
from holdfast.graph.aggregates import Aggregate, AggregateKind, Aggregation
from holdfast.state.encoding.types import parse_type
from tests.unit.tasks.operators.operator_kit import Harness

UTC = dt.UTC
INF, NAN = math.inf, math.nan
MOST, LEAST = Decimal(10**38 - 1), Decimal(1 - 10**38)

VALUES: dict[str, list[Any]] = {
    "boolean": [True, False, True],
    "byte": [-128, 127, 5],
    "short": [-(1 << 15), (1 << 15) - 1, 5],
    "int": [-(1 << 31), (1 << 31) - 1, 5],
    "long": [-(1 << 63), (1 << 63) - 1, 5],
    "float": [1.5, -INF, -2.5],
    "double": [5e-324, INF, -1.7976931348623157e308],
    "decimal(10,2)": [Decimal("1.25"), Decimal("-99999999.99"), Decimal("99999999.99")],
    "decimal(38,0)": [MOST, LEAST, Decimal(7)],
    "decimal(38,38)": [Decimal("0.1"), Decimal("-0.99999999999999999999999999999999999999"), Decimal("0.2")],
    "string": ["z", "", "\U0001f600"],
    "binary": [b"\xff", b"", b"a\x00"],
    "date": [dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(1970, 1, 1)],
    "timestamp": [
        dt.datetime(1, 1, 1, tzinfo=UTC),
        dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        dt.datetime(1970, 1, 1, tzinfo=UTC),
    ],
    "timestamp_ntz": [dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31), dt.datetime(1970, 1, 1)],
    "interval day to second": [dt.timedelta(1, 2, 3), dt.timedelta(-100_000_000), dt.timedelta(100_000_000)],
    "time(6)": [dt.time(1), dt.time(0), dt.time(23, 59, 59, 999_999)],
    "void": [None, None, None],
    "variant": [{"value": bytes([12, n]), "metadata": b"\x01\x00\x00"} for n in range(3)],
    "array<int>": [[1], [], [2, None]],
    "map<string,int>": [[("a", 1)], [], [("b", None)]],
    "struct<a:int,b:array<string>>": [{"a": 1, "b": ["x"]}, {"a": None, "b": None}, {"a": 2, "b": []}],
}
NUMBERS = [
    ddl for ddl in VALUES if ddl.startswith(("byte", "short", "int", "long", "float", "double", "dec"))
]
NUMBERS.remove("interval day to second")
UNORDERED = ["variant", "array<int>", "map<string,int>", "struct<a:int,b:array<string>>"]


def _mean(values: list[Any]) -> Any:
    return sum(map(float, values)) / len(values)


def _sum(values: list[Any]) -> Any:
    with localcontext(prec=100):
        return sum(values)


EXPECTED: dict[AggregateKind, Callable[[list[Any]], Any]] = {
    AggregateKind.COUNT: len,
    AggregateKind.SUM: _sum,
    AggregateKind.MEAN: _mean,
    AggregateKind.MIN: min,
    AggregateKind.MAX: max,
    AggregateKind.FIRST: lambda values: values[0],
    AggregateKind.LAST: lambda values: values[-1],
    AggregateKind.COLLECT: lambda values: values[-2:],
}


def accepted(kind: AggregateKind, ddl: str) -> bool:
    if kind in (AggregateKind.SUM, AggregateKind.MEAN):
        return ddl in NUMBERS
    return kind not in (AggregateKind.MIN, AggregateKind.MAX) or ddl not in UNORDERED


def over(ddl: str, kind: AggregateKind) -> Harness:
    aggregate = Aggregate(kind, "v", 2 if kind is AggregateKind.COLLECT else 0)
    schema = pa.schema([("k", pa.string()), ("v", parse_type(ddl)), ("at", pa.int64())])
    return Harness(Aggregation({"r": aggregate}), schema, ["k"], order_by=["at"])


def of(kind: AggregateKind, values: list[Any]) -> Any:
    """The aggregate of values, nulls left out; computed in plain Python."""
    some = [value for value in values if value is not None]
    if not some:
        return {AggregateKind.COUNT: 0, AggregateKind.COLLECT: []}.get(kind)
    return EXPECTED[kind](some)


def same(given: Any, wanted: Any, ddl: str, kind: AggregateKind) -> bool:
    if isinstance(wanted, float) and (kind is AggregateKind.MEAN or ddl in ("float", "double")):
        return given == pytest.approx(wanted, rel=1e-12, nan_ok=True)
    return bool(given == wanted and type(given) is type(wanted))


PAIRS = [(kind, ddl) for ddl in VALUES for kind in AggregateKind]


@pytest.mark.parametrize(("kind", "ddl"), [pair for pair in PAIRS if accepted(*pair)])
def test_an_aggregate_over_a_type_is_right_epoch_after_epoch(kind: AggregateKind, ddl: str) -> None:
    """Key `a` has values in every epoch, `b` one late, `c` one early, `d` never one; two share an epoch."""
    job, x = over(ddl, kind), VALUES[ddl]
    epochs = [
        [("a", x[0]), ("c", x[2]), ("d", None)],
        [("a", x[1]), ("a", None), ("b", None), ("d", None)],
        [("a", None), ("a", x[2]), ("b", x[1]), ("c", None), ("d", None)],
        [("e", x[1]), ("e", x[2]), ("e", None), ("e", x[0])],
    ]
    seen: dict[str, list[Any]] = {}
    for rows in epochs:
        for key, value in rows:
            seen.setdefault(key, []).append(value)
        given = job.epoch_of([(key, value, at) for at, (key, value) in enumerate(rows)]).outputs[""]
        results = dict(zip(given["k"].to_pylist(), given["r"].to_pylist(), strict=True))
        for key in {key for key, _ in rows}:
            wanted = of(kind, seen[key])
            assert same(results[key], wanted, ddl, kind), f"{kind} of {seen[key]} is {results[key]}"


@pytest.mark.parametrize(("kind", "ddl"), [pair for pair in PAIRS if not accepted(*pair)])
def test_an_aggregate_that_a_type_does_not_have_is_refused_when_declared(
    kind: AggregateKind, ddl: str
) -> None:
    with pytest.raises(DefinitionError, match=rf"{kind}\('v'\) is over .*; give it a"):
        over(ddl, kind)


@pytest.mark.parametrize("ddl", ["float", "double"])
def test_nan_is_a_value_that_has_no_order(ddl: str) -> None:
    shown = {}
    for kind in AggregateKind:
        job = over(ddl, kind)
        job.epoch_of([("a", NAN, 0), ("b", 1.0, 1), ("b", NAN, 2)])
        shown[kind] = [str(row[1]) for row in job.rows_of([("a", None, 0), ("b", 2.0, 1)])]
    assert shown == {
        AggregateKind.SUM: ["nan", "nan"],
        AggregateKind.MEAN: ["nan", "nan"],
        AggregateKind.COUNT: ["1", "3"],
        AggregateKind.MIN: ["nan", "1.0"],
        AggregateKind.MAX: ["nan", "2.0"],
        AggregateKind.FIRST: ["nan", "1.0"],
        AggregateKind.LAST: ["nan", "2.0"],
        AggregateKind.COLLECT: ["[nan]", "[nan, 2.0]"],
    }


@pytest.mark.parametrize("values", [[MOST, MOST], [MOST] * 4])
def test_a_decimal_sum_that_does_not_fit_is_refused(values: list[Decimal]) -> None:
    with pytest.raises(UserCodeError, match="too large"):
        over("decimal(38,0)", AggregateKind.SUM).epoch_of([("a", value, 0) for value in values])


def test_a_decimal_sum_may_pass_what_does_not_fit() -> None:
    rows = [("a", value, at) for at, value in enumerate([MOST, MOST, LEAST])]
    assert over("decimal(38,0)", AggregateKind.SUM).rows_of(rows) == [("a", MOST)]


def test_every_function_is_covered() -> None:
    made = [hf.sum("v"), hf.count("v"), hf.min("v"), hf.max("v"), hf.mean("v"), hf.first("v"), hf.last("v")]
    assert {each.kind for each in [*made, hf.collect("v")]} == set(AggregateKind) == set(EXPECTED)
