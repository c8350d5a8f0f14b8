"""However rows and rules are cut into epochs, whatever crashes, whatever the parallelism: every row is judged
by the rules up to its epoch, its own included, and by no others.

As in test_epochs the tasks, the lists and the commits are the real ones. The reference is a plain loop over
the epochs that were committed: their rules first, then their rows.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from holdfast.checkpoint.store.records import ListFile, OperatorSchema
from holdfast.checkpoint.store.schemas import record_of
from holdfast.graph.broadcast import BroadcastSide
from holdfast.graph.column_types import state_layout
from holdfast.runtime.epoch.list_state import (
    Lists,
    OperatorLists,
    TakenLists,
    _of_shard,
    broadcast_lists,
    take_lists,
)
from holdfast.runtime.epoch.payload_bundle import Bundle
from holdfast.state.files.schema_conversion import Lineage
from holdfast.storage.urls import open_storage
from holdfast.tasks.held_lists import broadcast_entries
from holdfast.tasks.messages import BroadcastLists, EpochWork, TaskResult, UnkeyedTask
from holdfast.tasks.unkeyed import unkeyed_result
from tests.property.test_epochs import Life, World, _frozen, checked, lives

HALF = "op.broadcast"
RULES = pa.schema([("rule", pa.int64()), ("at", pa.int64()), ("factor", pa.int64())])
Event = tuple[str, int, int, int]
"""Whether it is a row or a rule; its key or rule; when it came; its value or factor, which may be none."""


class Judge(hf.BroadcastFunction):
    """Adds values up per key, each times the factors of all rules; every third value asks for one rule."""

    output = "key long, at long, total long, rules long"
    rules = hf.BroadcastState("long", "struct<factor:long>")
    total = hf.ValueState("long", default=0)

    def process_broadcast(self, row: Any, ctx: Any) -> Any:
        if row.factor == 0:
            self.rules.pop(row.rule, None)
        else:
            self.rules[row.rule] = (row.factor,)

    def process(self, row: Any, ctx: Any) -> Any:
        factor = sum(each.factor for each in self.rules.values())
        if row.value % 3 == 0 and row.value in self.rules:
            factor += self.rules[row.value].factor
        self.total.value += row.value * factor
        yield row.key, row.at, self.total.value, len(self.rules)


def judged(epochs: list[list[Event]]) -> tuple[list[tuple[Any, ...]], dict[int, int]]:
    """What the committed epochs show, and the rules after them, without Holdfast."""
    shown, totals, rules = [], Counter[int](), dict[int, int]()
    for epoch in epochs:
        for _, rule, _, factor in (event for event in epoch if event[0] == "rule"):
            rules[rule] = factor
            if factor == 0:
                del rules[rule]
        for _, key, at, value in (event for event in epoch if event[0] == "row"):
            factor = sum(rules.values()) + (rules.get(value, 0) if value % 3 == 0 else 0)
            totals[key] += value * factor
            shown.append((("at", at), ("key", key), ("rules", len(rules)), ("total", totals[key])))
    return shown, rules


class BroadcastWorld(World):
    """A world with a broadcast half: its lists come from the newest commit, and go with the next."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, Judge(), ("at",))
        self._half = Lineage.begin(state_layout(HALF, BroadcastSide(Judge()), RULES, ()))
        self.epochs: list[list[Event]] = []
        self._results: list[TaskResult] = []

    def table(self, rows: list[Any]) -> pa.Table:
        return super().table([event[1:] for event in rows if event[0] == "row"])

    def committed(self, rows: list[Any]) -> None:
        self.epochs.append(rows)

    def held(self) -> OperatorLists:
        """The lists as the newest commit has them."""
        return OperatorLists((_of_shard(self.view.lists.get(HALF, ()), 0),))

    def schemas(self) -> tuple[OperatorSchema, ...]:
        return *super().schemas(), record_of(self._half)

    def broadcast(self, work: EpochWork, rows: list[Any]) -> BroadcastLists:
        rules = [dict(zip(RULES.names, event[1:], strict=True)) for event in rows if event[0] == "rule"]
        self._results = []
        if rules:
            task = UnkeyedTask(
                work=work, uid=HALF, function=BroadcastSide(Judge()), on_error="fail", outputs=("",),
                saves_state=True, layout=self._half.layout, lists=self.held().shards, order_by=("at",),
            )  # fmt: skip
            backwards = pa.Table.from_pylist(rules[::-1], schema=RULES)
            self._results = [unkeyed_result(task, 0, backwards.to_batches())]
        return BroadcastLists(self._half.layout, broadcast_lists(self.held(), self._results))

    def lists(self, bundle: Bundle) -> tuple[ListFile, ...]:
        taken, before = TakenLists(), Lists({HALF: self.held()})
        take_lists(taken, HALF, self._results, before, bundle)
        return tuple(taken.files)

    def rules(self) -> dict[int, int]:
        """The rules, restored by another machine."""
        storage = open_storage(self._storage.url)
        (shard,) = self.held().shards
        entries = broadcast_entries(storage, BroadcastLists(self._half.layout, shard))
        return {rule: value.factor for rule, value in entries["rules"].items()}


events = st.lists(
    st.tuples(st.sampled_from(["row", "row", "rule"]), st.integers(0, 5), st.integers(0, 4)),
    min_size=1,
    max_size=60,
)


@checked
@given(events, st.lists(lives, max_size=5))
def test_every_row_is_judged_by_the_rules_up_to_its_epoch(
    found: list[tuple[str, int, int]], plan: list[Life]
) -> None:
    left: list[Any] = [(kind, key, at, value) for at, (kind, key, value) in enumerate(found)]
    with tempfile.TemporaryDirectory(prefix="hf-broadcast-", ignore_cleanup_errors=True) as root:
        world = BroadcastWorld(Path(root))
        for life in plan:
            left = world.live(life, left)
        if left:
            world.live(Life(1, "lmdb", (len(left),), None, 0, False), left)
        shown, rules = judged(world.epochs)
        assert Counter(map(_frozen, world.shown)) == Counter(shown)
        assert world.rules() == rules
