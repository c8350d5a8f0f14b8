"""A sink by key over a store of the user's own."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest

from holdfast.connectors.contract import StagedPart
from holdfast.connectors.upsert import UpsertSink
from holdfast.errors import DefinitionError
from holdfast.testing import conformance
from holdfast.testing.conformance.sink_showing import SHOWING


class Store:
    """Keys -> (epoch, row, or None for one that was deleted)."""

    def __init__(self) -> None:
        self.kept: dict[str, tuple[int, tuple[Any, ...] | None]] = {}
        self.calls: list[tuple[int, int, int]] = []

    def write(self, rows: pa.Table, deletions: pa.Table, epoch: int) -> None:
        self.calls.append((epoch, rows.num_rows, deletions.num_rows))
        new = {row["user"]: tuple(row.values()) for row in rows.to_pylist()}
        for key, row in {**new, **{row["user"]: None for row in deletions.to_pylist()}}.items():
            if self.kept.get(key, (0, None))[0] <= epoch:
                self.kept[key] = (epoch, row)

    def write_blindly(self, rows: pa.Table, deletions: pa.Table, epoch: int) -> None:
        self.kept |= {row["user"]: (epoch, tuple(row.values())) for row in rows.to_pylist()}

    def rows(self) -> list[tuple[Any, ...]]:
        return [row for _, row in self.kept.values() if row is not None]


def publish(sink: UpsertSink, epoch: int, *rows: tuple[Any, ...]) -> None:
    names = ["user", "n", "gone"][: len(rows[0])]
    kinds = [pa.string(), pa.int64(), pa.bool_()]
    columns = zip(*rows, strict=True)
    table = pa.table(
        {name: pa.array(each, kind) for name, each, kind in zip(names, columns, kinds, strict=False)}
    )
    half = table.num_rows // 2
    parts = [StagedPart(0, half, lambda: table.slice(0, half))]
    parts.append(StagedPart(1, table.num_rows - half, lambda: table.slice(half)))
    sink.publisher("job", "out").publish(epoch, parts)


def test_it_keeps_what_is_promised_of_a_sink() -> None:
    stores: dict[str, Store] = defaultdict(Store)
    report = conformance.check_sink(
        lambda place: UpsertSink(stores[place].write, key="user", keeps_newest=True),
        lambda place: stores[place].rows(),
        only=SHOWING.names,
    )
    assert {"again-in-another-run", "two-at-once", "zombie"} <= set(report.kept)


def test_the_last_row_of_a_key_counts_or_the_highest() -> None:
    store = Store()
    publish(UpsertSink(store.write, key="user", keeps_newest=True), 1, ("a", 5), ("b", 1), ("a", 3))
    assert sorted(store.rows()) == [("a", 3), ("b", 1)]
    publish(
        UpsertSink(store.write, key="user", keeps_newest=True, order_by="n"),
        2,
        ("a", 5),
        ("a", None),
        ("a", 3),
    )
    assert sorted(store.rows()) == [("a", 5), ("b", 1)]
    assert store.calls == [(1, 2, 0), (2, 1, 0)]


def test_deletions_are_told_apart_and_an_old_epoch_brings_nothing_back() -> None:
    store = Store()
    sink = UpsertSink(store.write, key="user", keeps_newest=True, deleted="gone")
    publish(sink, 1, ("a", 1, False), ("b", 2, None))
    publish(sink, 2, ("a", 9, True), ("b", 3, False))
    assert store.rows() == [("b", 3)]
    publish(sink, 1, ("a", 1, False), ("b", 2, None))
    assert store.rows() == [("b", 3)], "a leader that was replaced wakes up"


def test_without_the_users_word_it_is_at_least_once() -> None:
    store = Store()
    sink = UpsertSink(store.write_blindly, key="user", keeps_newest=False)
    assert not sink.exactly_once
    publish(sink, 1, ("a", 1), ("b", 1))
    publish(sink, 2, ("a", 2), ("b", 2))
    publish(sink, 1, ("a", 1), ("b", 1))
    assert store.rows() == [("a", 1), ("b", 1)], "which is why"


@pytest.mark.parametrize("how", [{"key": ()}, {"key": "m"}, {"deleted": "n"}, {"order_by": "m"}])
def test_columns_that_it_needs_are_asked_for_before_anything_runs(how: dict[str, Any]) -> None:
    schema = pa.schema([("user", pa.string()), ("n", pa.int64())])
    with pytest.raises(DefinitionError, match="; "):
        UpsertSink(Store().write, **{"key": "user", "keeps_newest": True, **how}).check_schema(schema)
