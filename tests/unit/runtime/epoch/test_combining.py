"""When rows are combined before they go to their shards."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.graph.aggregates import Aggregation
from holdfast.graph.partials import Partials, partials_of
from holdfast.runtime.epoch.combining import ROWS_PER_KEY, ROWS_PER_SHARD, STAYS, Combining, ShardLoad
from holdfast.runtime.epoch.program import _partials
from holdfast.runtime.epoch.runner import EpochRunner
from holdfast.runtime.spark_session import GOOD_SETTINGS, groups_cheaply, missing_settings

KEYS = ROWS_PER_SHARD // ROWS_PER_KEY
MANY, SOME, FEW = ROWS_PER_SHARD, ROWS_PER_SHARD // STAYS, ROWS_PER_SHARD // STAYS - 1
ABLE = Combining(frozenset({"op"}))


def after(begin: Combining, *epochs: tuple[int, int]) -> list[bool]:
    """Whether `op` is combined after each epoch, of rows and keys on each of two shards."""
    found = []
    for rows, keys in epochs:
        begin = begin.after({"op": [ShardLoad(rows, keys)] * 2})
        found.append(begin.chosen == ("op",))
    return found


def test_nothing_is_combined_before_an_epoch_has_shown_that_it_pays() -> None:
    assert ABLE.chosen == ()
    assert after(ABLE, (MANY - 1, 1), (MANY, KEYS + 1), (MANY, KEYS)) == [False, False, True]


def test_a_choice_stays_until_it_clearly_does_not_pay() -> None:
    """By rows of a shard, and by rows of a key: what would not have begun it does not end it at once."""
    assert after(ABLE, (MANY, 1), (SOME, 1), (FEW, 1), (SOME, 1)) == [True, True, False, False]
    assert after(ABLE, (MANY, 1), (MANY, STAYS * KEYS), (MANY, STAYS * KEYS + 1)) == [True, True, False]


def test_one_hot_key_makes_combining_pay_that_the_others_would_not() -> None:
    even = [ShardLoad(MANY, STAYS * KEYS)] * 2
    hot = [ShardLoad(MANY * 3, STAYS * KEYS), ShardLoad(MANY, STAYS * KEYS)]
    assert ABLE.after({"op": even}).chosen == ()
    assert ABLE.after({"op": hot}).chosen == ("op",)


def test_an_operator_without_rows_stays_as_it_is_and_one_that_cannot_is_never_chosen() -> None:
    begun = ABLE.after({"op": [ShardLoad(MANY, 1)], "other": [ShardLoad(MANY, 1)]})
    assert begun.chosen == ("op",)
    assert begun.after({}).chosen == ("op",)
    assert begun.after({"op": [ShardLoad(0, 0)]}).chosen == ("op",)
    assert ABLE.after({"op": [ShardLoad(MANY, KEYS), ShardLoad(0, 0)]}).chosen == ("op",)
    assert ABLE.after({"op": [ShardLoad(MANY, KEYS + 1), ShardLoad(0, 0)]}).chosen == ()
    assert Combining().after({"op": [ShardLoad(MANY, 1)]}).chosen == ()


def test_rows_that_are_late_and_wanted_as_they_are_end_combining() -> None:
    begun = ABLE.after({"op": [ShardLoad(MANY, 1)]})
    assert begun.after({"op": [ShardLoad(MANY, 1), ShardLoad(MANY, 1, late=1)]}).chosen == ()


def session(**settings: str) -> Any:
    conf = {
        **GOOD_SETTINGS,
        "spark.sql.shuffle.partitions": "2",
    }
    conf |= {f"spark.sql.{name.replace('_', '.')}": value for name, value in settings.items()}
    return SimpleNamespace(conf=conf, sparkContext=SimpleNamespace(defaultParallelism=2))


@pytest.mark.parametrize(
    ("settings", "cheaply"),
    [
        ({}, True),
        ({"shuffle_partitions": "8"}, True),
        ({"shuffle_partitions": "9"}, False),
        ({"shuffle_partitions": "200", "adaptive_enabled": "true"}, True),
    ],
)
def test_a_session_that_groups_into_many_partitions_does_not_combine(
    settings: dict[str, str], cheaply: bool
) -> None:
    assert groups_cheaply(session(**settings), 2) is cheaply


def test_a_session_that_groups_into_many_partitions_is_told_how_many_to_have() -> None:
    assert missing_settings(session()) == []
    assert missing_settings(session(shuffle_partitions="200")) == ["spark.sql.shuffle.partitions=2"]


@pytest.mark.parametrize(("replicated", "exact", "combines"), [
    (True, False, False), (True, True, True), (False, False, True),
])  # fmt: skip
def test_replicas_combine_only_what_is_exact_whatever_the_plan_of_a_leader_that_was_alone_says(
    replicated: bool, exact: bool, combines: bool
) -> None:
    """Each would come to other last bits, and where they vote none would have most votes."""
    form = SimpleNamespace(partials=Partials(pa.schema([]), {}, (), exact=exact))
    runner: Any = SimpleNamespace(
        replicated=replicated, saves_state=True, program=SimpleNamespace(forms={"op": form})
    )
    stage: Any = SimpleNamespace(outputs={})
    node: Any = SimpleNamespace(uid="op")
    plan: Any = SimpleNamespace(combined=("op",))
    assert EpochRunner._combines(runner, stage, node, plan) is combines


@pytest.mark.parametrize(("aggregate", "exact"), [
    (hf.count(), True), (hf.count("f"), True), (hf.sum("n"), True), (hf.sum("d"), True), (hf.max("n"), True),
    (hf.min("d"), True), (hf.sum("f"), False), (hf.max("f"), False), (hf.mean("n"), False),
    (hf.mean("d"), False), (hf.first("n"), False), (hf.last("n"), False),
])  # fmt: skip
def test_which_aggregates_are_exact_however_rows_were_cut(aggregate: Any, exact: bool) -> None:
    rows = pa.schema([("n", pa.int64()), ("d", pa.decimal128(10, 2)), ("f", pa.float64())])
    for beside in (hf.count(), aggregate):
        found = partials_of(Aggregation({"beside": beside, "of": aggregate}), rows, ())
        assert found is not None
        assert found.exact is exact


@pytest.mark.parametrize(
    ("type", "exact"),
    [
        (pa.int64(), True),
        (pa.string(), True),
        (pa.float64(), False),
        (pa.struct([("a", pa.list_(pa.float32()))]), False),
    ],
)
def test_keys_that_hold_floats_are_not_the_same_to_the_last_bit(type: pa.DataType, exact: bool) -> None:
    """Spark makes one zero of two when it combines, and a task takes the first that it meets."""
    rows = pa.schema([("k", type), ("v", pa.int64())])
    node: Any = SimpleNamespace(
        function=Aggregation({"n": hf.count()}), uncoordinated=None, order_by=(), key=("k",)
    )
    partials = _partials(node, rows)
    assert partials is not None
    assert partials.exact is exact
