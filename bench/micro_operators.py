"""What does an operator cost per row, Spark and storage left out?

Prints the least CPU time over several runs of every kind of operator, on a state that is a dict: 125,000 rows
over 46,000 distinct long keys, one long state per key, all keys known before. CPU time, so that what else the
machine does counts as little as possible.

    python bench/micro_operators.py
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.graph import aggregates
from holdfast.graph.functions import BatchFunction, KeyedFunction
from holdfast.state.cells.declarations import ListState, MapState, ValueState, state_fields
from holdfast.state.encoding.keys import key_groups_of, routing_hash
from holdfast.state.encoding.layout import StateLayout
from holdfast.state.files.delta import to_entries
from holdfast.tasks.operators.aggregate import run_aggregate
from holdfast.tasks.operators.batch_function import run_batch
from holdfast.tasks.operators.result import EpochContext, OperatorResult
from holdfast.tasks.operators.row_function import run_rows
from holdfast.tasks.operators.shard_rows import cut

ROWS, KEYS, KEY_GROUPS, REPEATS = 125_000, 46_000, 128, 7


class DictState:
    """The reading half of a shard's state, over a dict."""

    def __init__(self) -> None:
        self.entries: dict[bytes, bytes] = {}

    def get(self, key: bytes) -> bytes | None:
        return self.entries.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return list(map(self.entries.get, keys))

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        return iter(sorted(entry for entry in self.entries.items() if entry[0].startswith(prefix)))

    def put(self, layout: StateLayout, result: OperatorResult) -> None:
        self.entries.update((k, v) for k, v in to_entries(layout, result.changes) if v is not None)


class RunningSum(KeyedFunction):
    output = "k long, total long"
    total = ValueState("long", default=0)

    def process(self, row: Any, ctx: Any) -> Any:
        self.total.value += row.value
        yield row.k, self.total.value


class Named(KeyedFunction):
    output = "k string, total long"
    total = ValueState("long", default=0)

    def process(self, row: Any, ctx: Any) -> Any:
        self.total.value += row.value
        yield row.k, self.total.value


class Remembering(KeyedFunction):
    output = "k long, seen long"
    seen = ListState("long")

    def process(self, row: Any, ctx: Any) -> Any:
        self.seen.append(row.value)
        yield row.k, len(self.seen)


class Counting(KeyedFunction):
    output = "k long, n long"
    counts = MapState("long", "long")

    def process(self, row: Any, ctx: Any) -> Any:
        self.counts[row.value % 10] = self.counts.get(row.value % 10, 0) + 1
        yield row.k, self.counts[row.value % 10]


class BatchSum(BatchFunction):
    output = "k long, total long"
    total = ValueState("long", default=0)

    def process(self, rows: pa.Table, ctx: Any) -> pa.Table:
        sums = np.zeros(len(ctx.keys), dtype=np.int64)
        np.add.at(sums, ctx.key_index, rows["value"].to_numpy())
        self.total.column = pc.add(self.total.column, pa.array(sums))
        return pa.table({"k": ctx.keys["k"], "total": self.total.column})


def slice_of(text_keys: bool) -> tuple[pa.Table, Any]:
    rng = np.random.default_rng(7)
    numbers = np.concatenate([np.arange(KEYS), rng.integers(0, KEYS, ROWS - KEYS)])
    rng.shuffle(numbers)
    keys = pa.array([f"user-{number}" for number in numbers]) if text_keys else pa.array(numbers * 7919)
    rows = pa.table({"k": keys, "value": rng.integers(0, 1_000, ROWS)})
    return rows, key_groups_of(routing_hash([keys]), KEY_GROUPS)


def measure(name: str, run: Callable[..., OperatorResult], function: Any, *, on_error: Any = "fail") -> None:
    rows, groups = slice_of(text_keys=isinstance(function, Named))
    is_aggregation = isinstance(function, aggregates.Aggregation)
    fields = function.state_fields(rows.schema) if is_aggregation else state_fields(type(function))
    layout = StateLayout("bench", pa.schema([rows.schema.field("k")]), fields)
    state = DictState()
    ctx = EpochContext("bench", 1, 0, 0, on_error)

    def once() -> OperatorResult:
        return run(function, layout, cut(layout, rows, groups, ("k",), ()), state, ctx)

    state.put(layout, once())
    best = float("inf")
    for _ in range(REPEATS):
        gc.collect()
        start = time.process_time()
        once()
        best = min(best, time.process_time() - start)
    print(f"{name:32} {best * 1e3:8.1f} ms {best * 1e9 / ROWS:8.0f} ns/row", flush=True)


def main() -> None:
    measure("aggregate sum", run_aggregate, aggregates.Aggregation({"total": aggregates.sum("value")}))
    several = {"n": aggregates.count(), "mean": aggregates.mean("value"), "top": aggregates.max("value")}
    measure("aggregate count, mean, max", run_aggregate, aggregates.Aggregation(several))
    measure("batch sum", run_batch, BatchSum())
    measure("rows, value state", run_rows, RunningSum())
    measure("rows, value state, string key", run_rows, Named())
    measure("rows, value state, dead letters", run_rows, RunningSum(), on_error="dead-letter")
    measure("rows, list state", run_rows, Remembering())
    measure("rows, map state", run_rows, Counting())


if __name__ == "__main__":
    main()
