"""Running aggregates, as frozen declarations.

Nulls are ignored as in SQL: a result is null until a value that is not null was seen; `count()` counts rows.
The accumulators of all aggregates of an operator are the fields of one struct, kept in one value state.
Never here: computing them (see tasks.operators.aggregate).
"""

from __future__ import annotations

from builtins import min as least
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa

from holdfast.errors import DefinitionError
from holdfast.state.encoding.layout import StateField, StateKind
from holdfast.state.encoding.ttl import Ttl
from holdfast.state.encoding.types import DECIMAL_DIGITS_MAX, type_ddl

ACCUMULATOR = "accumulator"
COLLECT_LIMIT = 1_000
_SUM_EXTRA_DIGITS = 10


class AggregateKind(StrEnum):
    SUM = "sum"
    COUNT = "count"
    MIN = "min"
    MAX = "max"
    MEAN = "mean"
    FIRST = "first"
    LAST = "last"
    COLLECT = "collect"


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One aggregate over a column; made by the functions below. `column` is None only for counting rows."""

    kind: AggregateKind
    column: str | None
    limit: int = 0

    def result_type(self, rows: pa.Schema) -> pa.DataType:
        """The type of the result over rows of this schema, by Spark's rules; DefinitionError if none."""
        if self.kind is AggregateKind.COUNT:
            self._input_type(rows)
            return pa.int64()
        given = self._input_type(rows)
        if self.kind is AggregateKind.COLLECT:
            return pa.list_(given)
        if self.kind in (AggregateKind.FIRST, AggregateKind.LAST):
            return given
        numeric = pa.types.is_integer(given) or pa.types.is_floating(given) or pa.types.is_decimal(given)
        if self.kind in (AggregateKind.MIN, AggregateKind.MAX):
            if pa.types.is_nested(given):
                raise self._unfit(given, "a type that has an order")
            return given
        if not numeric:
            raise self._unfit(given, "a numeric column")
        if self.kind is AggregateKind.MEAN or pa.types.is_floating(given):
            return pa.float64()
        if pa.types.is_decimal(given):
            return pa.decimal128(least(DECIMAL_DIGITS_MAX, given.precision + _SUM_EXTRA_DIGITS), given.scale)
        return pa.int64()

    def __str__(self) -> str:
        """What it computes. Stored with its accumulator: this text never changes."""
        return f"{self.kind}({self.column or ''})"

    def accumulator(self, name: str, rows: pa.Schema) -> tuple[pa.Field, ...]:
        """The fields of the accumulator of this aggregate, called `name` by the user."""
        result = self.result_type(rows)
        types = (pa.float64(), pa.int64()) if self.kind is AggregateKind.MEAN else (result,)
        return tuple(map(pa.field, self.accumulator_names(name), types))

    def accumulator_names(self, name: str) -> tuple[str, ...]:
        """What the fields of its accumulator are called."""
        return (f"{name}__sum", f"{name}__count") if self.kind is AggregateKind.MEAN else (name,)

    def _input_type(self, rows: pa.Schema) -> pa.DataType:
        if self.column is None:
            return pa.null()
        if self.column not in rows.names:
            raise DefinitionError(
                f"{self.kind}({self.column!r}): there is no such column; there are {', '.join(rows.names)}"
            )
        return rows.field(self.column).type

    def _unfit(self, given: pa.DataType, wanted: str) -> DefinitionError:
        return DefinitionError(f"{self.kind}({self.column!r}) is over {type_ddl(given)}; give it {wanted}")


def sum(column: str) -> Aggregate:
    """The sum: long of integers, double of floats, ten digits more of decimals. Overflow fails the epoch."""
    return Aggregate(AggregateKind.SUM, column)


def count(column: str | None = None) -> Aggregate:
    """How many rows, or how many values of the column that are not null."""
    return Aggregate(AggregateKind.COUNT, column)


def min(column: str) -> Aggregate:
    """The smallest value. NaN counts only where there is nothing else."""
    return Aggregate(AggregateKind.MIN, column)


def max(column: str) -> Aggregate:
    """The largest value. NaN counts only where there is nothing else."""
    return Aggregate(AggregateKind.MAX, column)


def mean(column: str) -> Aggregate:
    """The arithmetic mean, as double."""
    return Aggregate(AggregateKind.MEAN, column)


def first(column: str) -> Aggregate:
    """The first value ever seen; within an epoch by `order_by`, any without it."""
    return Aggregate(AggregateKind.FIRST, column)


def last(column: str) -> Aggregate:
    """The newest value; within an epoch by `order_by`, any without it."""
    return Aggregate(AggregateKind.LAST, column)


def collect(column: str, limit: int = COLLECT_LIMIT) -> Aggregate:
    """The newest `limit` values, oldest first; within an epoch by `order_by`, in any order without it."""
    if limit < 1:
        raise DefinitionError(f"collect({column!r}, limit={limit}) keeps nothing; give a limit of at least 1")
    return Aggregate(AggregateKind.COLLECT, column, limit)


@dataclass(frozen=True, slots=True)
class Aggregation:
    """The aggregates of one operator by the name of their result. Emits each touched key once per epoch."""

    aggregates: Mapping[str, Aggregate]
    ttl: Ttl | None = None
    """How long a key's aggregates are kept since its last row; None: for good."""

    def accumulator_type(self, rows: pa.Schema) -> pa.StructType:
        """The struct that is stored per key."""
        fields = [field for name, each in self.aggregates.items() for field in each.accumulator(name, rows)]
        names = [field.name for field in fields]
        if not fields:
            raise DefinitionError(
                "aggregate() has nothing to compute; name at least one, such as n=hf.count()"
            )
        for name in names:
            if names.count(name) > 1:
                raise DefinitionError(f"two aggregates keep a field {name!r}; rename one of them")
        return pa.struct(fields)

    @property
    def computed(self) -> dict[str, str]:
        """Accumulator field -> the aggregate that it belongs to."""
        return {
            field: str(each)
            for name, each in self.aggregates.items()
            for field in each.accumulator_names(name)
        }

    def state_fields(self, rows: pa.Schema) -> tuple[StateField, ...]:
        """The one state of the operator over rows of this schema."""
        return (StateField(1, ACCUMULATOR, StateKind.VALUE, self.accumulator_type(rows), self.ttl),)

    def output_schema(self, rows: pa.Schema, key_columns: Sequence[str]) -> pa.Schema:
        """Key columns, then the results."""
        for name in self.aggregates:
            if name in key_columns:
                raise DefinitionError(f"aggregate {name!r} is named like a key column; rename it")
        fields = [rows.field(name).remove_metadata() for name in key_columns]
        fields += [pa.field(name, each.result_type(rows)) for name, each in self.aggregates.items()]
        return pa.schema(fields)
