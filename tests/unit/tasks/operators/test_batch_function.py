from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from holdfast.errors import UserCodeError
from holdfast.graph.functions import BatchFunction, mistakes
from holdfast.state.cells.declarations import ListState, ValueState
from tests.unit.tasks.operators.operator_kit import Harness

ROWS = pa.schema([("k", pa.string()), ("v", pa.int64())])


class Sum(BatchFunction):
    output = "k string, total long"
    total = ValueState("long", default=100)

    def process(self, rows: pa.Table, ctx: Any) -> pa.Table:
        sums = np.bincount(ctx.key_index, weights=rows["v"].to_numpy(), minlength=len(ctx.keys))
        self.total.column = pc.add(self.total.column, pa.array(sums.astype(np.int64)))
        return pa.table({"k": ctx.keys["k"], "total": self.total.column})


def test_columns_of_state_are_aligned_with_the_keys_and_start_at_the_default() -> None:
    job = Harness(Sum(), ROWS, ["k"])
    assert job.rows_of([("a", 1), ("b", 2), ("a", 3)]) == [("a", 104), ("b", 102)]
    assert job.rows_of([("c", 5), ("b", 1)]) == [("b", 103), ("c", 105)]
    assert job.rows_of([("a", 0)]) == [("a", 104)]


def test_cleared_keys_are_removed_and_read_as_the_default() -> None:
    class Clearing(Sum):
        def process(self, rows: pa.Table, ctx: Any) -> pa.Table:
            out = super().process(rows, ctx)
            self.total.clear(pc.equal(ctx.keys["k"], "a"))
            return out

    job = Harness(Clearing(), ROWS, ["k"])
    job.epoch_of([("a", 1), ("b", 2)])
    assert len(job.state.entries) == 1
    assert job.rows_of([("a", 1), ("b", 2)]) == [("a", 101), ("b", 104)]


def test_a_state_that_is_only_read_is_not_written() -> None:
    class Reading(Sum):
        def process(self, rows: pa.Table, ctx: Any) -> pa.Table:
            return pa.table({"k": ctx.keys["k"], "total": self.total.column})

    assert Harness(Reading(), ROWS, ["k"]).epoch_of([("a", 1)]).changes.values == {}


def test_output_is_cast_where_nothing_is_lost_and_refused_otherwise() -> None:
    class Typed(BatchFunction):
        output = "n int"

        def process(self, rows: pa.Table, ctx: Any) -> pa.Table:
            return pa.table({"n": rows["v"], "extra": rows["v"]})

    job = Harness(Typed(), ROWS, ["k"])
    assert job.epoch_of([("a", 7)]).outputs[""].schema == pa.schema([("n", pa.int32())])
    with pytest.raises(UserCodeError, match="output column 'n' is declared int but is int64"):
        job.epoch_of([("a", 2**40)])


@pytest.mark.parametrize(
    ("make", "cause"),
    [
        (lambda rows: rows.to_pylist(), r"process\(\) returned a list; return a pyarrow.Table"),
        (lambda rows: rows.select(["v"]), "output column 'k' is missing"),
        (lambda rows: 1 / 0, "ZeroDivisionError: division by zero at .*test_batch_function.py"),
    ],
)
def test_what_the_function_did_wrong_is_said(make: Any, cause: str) -> None:
    class Wrong(BatchFunction):
        output = "k string"

        def process(self, rows: pa.Table, ctx: Any) -> pa.Table:
            return make(rows)

    with pytest.raises(UserCodeError, match=cause):
        Harness(Wrong(), ROWS, ["k"]).epoch_of([("a", 1)])


@pytest.mark.parametrize("values", [pa.array([1]), pa.array(["x", "y"]), pa.array([1.5, 2.0])])
def test_a_column_that_does_not_fit_the_state_is_refused(values: pa.Array) -> None:
    class Wrong(Sum):
        def process(self, rows: pa.Table, ctx: Any) -> pa.Table:
            self.total.column = values
            return rows

    with pytest.raises(UserCodeError, match="state 'total'"):
        Harness(Wrong(), ROWS, ["k"]).epoch_of([("a", 1), ("b", 1)])


def test_state_of_single_rows_is_not_there_for_a_batch() -> None:
    class Wrong(Sum):
        def process(self, rows: pa.Table, ctx: Any) -> pa.Table:
            self.total.value += 1
            return rows

    with pytest.raises(UserCodeError, match="state 'total' has no 'value' in a BatchFunction; use its col"):
        Harness(Wrong(), ROWS, ["k"]).epoch_of([("a", 1)])


def test_only_value_states_can_be_columns() -> None:
    class Listing(Sum):
        items = ListState("long")

    assert mistakes(Sum()) == []
    assert mistakes(Listing()) == ["Listing.items is a ListState; a BatchFunction can have ValueState only"]
