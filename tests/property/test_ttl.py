"""Whatever is written and read, however time passes, whatever crashes, is restored or rescaled: a state with
a ttl is a dict whose values go at their time, and nothing is left of them.

Tasks, working state, deltas, snapshots and commit records are the real ones (see test_epochs).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.checkpoint.chain.shard_lines import line_of
from holdfast.checkpoint.store.schemas import lineage_of, record_of
from holdfast.graph.column_types import state_layout
from holdfast.ids import shard_ranges
from holdfast.inspect.stored_state import StoredState, state_tables
from holdfast.state.encoding.layout import in_time_index
from holdfast.state.files.evolution import Declared, evolve
from tests.property.test_epochs import BACKENDS, GROUPS, ROWS, World

EXAMPLES = int(os.environ.get("HOLDFAST_TTL_EXAMPLES", "25"))
TTL_MS = 10_000
LOOK, WRITE, DELETE, CLEAR = range(4)


class Kept(hf.KeyedFunction):
    """Does what `value` says, and shows what it has: `at` is what to write, or which entry to delete."""

    output = "key long, at long, value long, items array<long>, entries map<long,long>, read long"
    value = hf.ValueState("long", ttl="10s")
    items = hf.ListState("long", ttl="10s")
    entries = hf.MapState("long", "long", ttl="10s")
    read = hf.ValueState("long", ttl="10s", since="read")

    def process(self, row: Any, ctx: Any) -> Iterator[Any]:
        if row.value == WRITE:
            self.value.value = row.at
            self.items.append(row.at)
            self.entries[row.at % 3] = row.at
            self.read.value = row.at
        elif row.value == DELETE:
            self.entries.pop(row.at % 3, None)
        elif row.value == CLEAR:
            self.items.clear()
            self.value.clear()
        yield row.key, row.at, self.value.value, list(self.items), dict(self.entries), self.read.value


@dataclass
class Expected:
    """What one key should have: each thing with the time of its last write (or read)."""

    value: tuple[int, int] | None = None
    items: list[tuple[int, int]] = field(default_factory=list)
    entries: dict[int, tuple[int, int]] = field(default_factory=dict)
    read: tuple[int, int] | None = None

    def at(self, now: int) -> Expected:
        def live(each: tuple[int, int] | None) -> bool:
            return each is not None and each[1] + TTL_MS > now

        return Expected(
            self.value if live(self.value) else None,
            [item for item in self.items if live(item)],
            {key: entry for key, entry in self.entries.items() if live(entry)},
            self.read if live(self.read) else None,
        )

    def shown(self, key: int, at: int) -> tuple[Any, ...]:
        items = tuple(number for number, _ in self.items)
        entries = tuple(sorted((name, number) for name, (number, _) in self.entries.items()))
        return key, at, self.value and self.value[0], items, entries, self.read and self.read[0]


class Model:
    def __init__(self) -> None:
        self.keys: dict[int, Expected] = {}
        self.shown: list[tuple[Any, ...]] = []

    def epoch(self, rows: list[tuple[int, int, int]], now: int) -> None:
        for key in {key for key, _, _ in rows}:
            self.keys[key] = self.keys.get(key, Expected()).at(now)
        # A read renews what is at least a sixteenth old; once for all rows of a key in the epoch.
        for key, at, what in rows:
            one = self.keys[key]
            if what == WRITE:
                one.value = one.read = (at, now)
                one.items.append((at, now))
                one.entries[at % 3] = (at, now)
            elif what == DELETE:
                one.entries.pop(at % 3, None)
            elif what == CLEAR:
                one.items, one.value = [], None
            self.shown.append(one.shown(key, at))
            if one.read is not None and (now - one.read[1]) * 16 >= TTL_MS:
                one.read = (one.read[0], now)


@dataclass(frozen=True)
class Step:
    """An epoch: how much later it is, its rows, and what is done before or with it."""

    later_ms: int
    rows: tuple[tuple[int, int], ...]
    shards: int
    backend: str
    lost: bool
    snapshots: int
    dies_first: int | None


steps = st.builds(
    Step,
    later_ms=st.integers(0, 24).map(lambda halves: halves * 500),
    rows=st.lists(st.tuples(st.integers(0, 5), st.integers(LOOK, CLEAR)), max_size=8).map(tuple),
    shards=st.integers(1, 3),
    backend=st.sampled_from(BACKENDS),
    lost=st.booleans(),
    snapshots=st.integers(0, 3),
    dies_first=st.none() | st.integers(0, 2),
)


class Living(World):
    """A world in which time passes, and code changes."""

    def upgrade(self, function: Any) -> list[str]:
        """Go on with other code; gives what `holdfast check` says of its states."""
        now = Declared(state_layout("op", function, ROWS, ("key",)))
        evolution = evolve(self._lineage, now, allow_dropped_state=False)
        assert not evolution.problems
        self._function, self._lineage = function, evolution.lineage
        self._schema = record_of(self._lineage)
        return [change.detail for change in evolution.changes]

    def step(self, step: Step, rows: list[tuple[int, int, int]]) -> None:
        self.clock_ms += step.later_ms
        if step.lost:
            for backend in BACKENDS:
                shutil.rmtree(self._workspace(backend).working_root or "", ignore_errors=True)
        workspace = self._workspace(step.backend)
        ranges = shard_ranges(GROUPS, step.shards)
        lines = {("op", shard): line_of(self.view, "op", groups) for shard, groups in enumerate(ranges)}
        if self.view.operators != (self._schema,):
            lines = {key: line.advanced(line.version, None) for key, line in lines.items()}
        if step.dies_first is not None:
            self._run(workspace, lines, rows, step.shards, step.dies_first)
        results = self._run(workspace, lines, rows, step.shards, None)
        self._commit(results, lines, [], step.shards)
        snapshots = self._snapshots(workspace, lines, step.snapshots)
        if snapshots:
            self._commit([], lines, snapshots, step.shards)

    def stored(self) -> list[tuple[Any, ...]]:
        """What inspection shows: key, value, items, entries, read."""
        tables = state_tables(StoredState(self._storage, self.view, GROUPS, "job", ""), "op")
        rows = [row for table in tables for row in table.to_pylist()]
        return sorted(
            (
                row["key"],
                row["value"],
                tuple(row["items"] or ()),
                tuple(sorted(row["entries"] or ())),
                row["read"],
            )
            for row in rows
        )


def _frozen(row: dict[str, Any]) -> tuple[Any, ...]:
    return (
        row["key"],
        row["at"],
        row["value"],
        tuple(row["items"]),
        tuple(sorted(row["entries"])),
        row["read"],
    )


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.lists(steps, min_size=1, max_size=8))
def test_a_state_with_a_ttl_is_a_dict_whose_values_go_at_their_time(plan: list[Step]) -> None:
    with tempfile.TemporaryDirectory(prefix="hf-ttl-", ignore_cleanup_errors=True) as root:
        world, model = Living(Path(root), Kept(), ("at",)), Model()
        count = 0
        for step in plan:
            rows = [(key, count + place, what) for place, (key, what) in enumerate(step.rows)]
            count += len(rows)
            world.step(step, rows)
            model.epoch(rows, world.clock_ms)
            assert Counter(map(_frozen, world.shown)) == Counter(model.shown)
            live = {key: one.at(world.clock_ms) for key, one in model.keys.items()}
            wanted = [(key, *one.shown(key, 0)[2:]) for key, one in sorted(live.items()) if one != Expected()]
            assert world.stored() == wanted
        looks = [(key, count, LOOK) for key in range(20)]
        for _ in range(2):
            # Deltas do not say which places in the index were left: a restored shard meets those in its next
            # epoch, and has one only when rows come, if none of its entries is due any more.
            world.step(Step(3 * TTL_MS, (), 2, "lmdb", True, 2, None), looks)
        assert world.state() == {}


def _kept(ttl: str | None, clock: str | None = None) -> Any:
    """A function that keeps what its rows bring for so long."""
    given: Any = {} if ttl is None else {"ttl": ttl, "clock": clock}

    class Kept(hf.KeyedFunction):
        output = "key long, at long, value long, items array<long>, entries map<long,long>, read long"
        value = hf.ValueState("long", **given)
        items = hf.ListState("long", **given)
        entries = hf.MapState("long", "long", **given)
        read = hf.ReducingState("long", max, **given)

        def process(self, row: Any, ctx: Any) -> Iterator[Any]:
            if row.value == WRITE:
                self.value.value = row.at
                self.items.append(row.at)
                self.entries[row.at] = row.at
                self.read.add(row.at)
            yield row.key, row.at, self.value.value, list(self.items), dict(self.entries), self.read.value

    return Kept()


WRITTEN = [(key, key + 100, WRITE) for key in range(20)]
ALL = [(key, key + 100, (key + 100,), ((key + 100, key + 100),), key + 100) for key in range(20)]


def _step(later_ms: int, backend: str = "lmdb", snapshots: int = 0, lost: bool = False) -> Step:
    return Step(later_ms, (), 2, backend, lost, snapshots, None)


@pytest.fixture(params=["lmdb", "rocksdb"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("snapshots", [0, 2], ids=["deltas", "snapshots"])
def test_values_from_before_the_ttl_count_from_the_upgrade(
    tmp_path: Path, backend: str, snapshots: int
) -> None:
    world = Living(tmp_path, _kept(None), ("at",))
    world.step(_step(0, backend, snapshots), WRITTEN)
    details = world.upgrade(_kept("10s"))
    assert details[0] == "ttl 10s since write is new: older values count from the upgrade"
    world.step(_step(1_000_000, backend), [])
    world.step(_step(9_999, backend, lost=True), [])
    assert world.stored() == ALL
    world.step(_step(1, backend), [])
    assert world.stored() == []
    world.step(_step(10_000, backend), [])
    assert all(map(in_time_index, world.state())), "only places in the index that values have left"
    looks = [(key, key, LOOK) for key in range(20)]
    world.step(_step(0, backend, snapshots=2, lost=True), looks)
    assert world.state() == {}, "which the next epoch drops"


def test_a_ttl_that_is_removed_keeps_for_good_what_had_not_expired(tmp_path: Path, backend: str) -> None:
    world = Living(tmp_path, _kept("10s"), ("at",))
    world.step(_step(0, backend), WRITTEN[:6])
    world.step(_step(9_000, backend, 2), WRITTEN[5:])
    world.step(_step(1_500, backend), [])
    assert world.upgrade(_kept(None))[0].endswith(
        "is gone: values that have not expired yet are kept for good"
    )
    world.step(_step(1_000_000, backend, lost=True), [])
    # Expired, but not removed yet when the ttl went: what is removed in batches may come to stay.
    assert [row[0] for row in world.stored()][-15:] == list(range(5, 20))
    world.shown.clear()
    world.step(_step(10_000, backend), [(5, 1, LOOK), (8, 108, WRITE)])
    assert sorted(map(_frozen, world.shown)) == [
        (5, 1, 105, (105,), ((105, 105),), 105), (8, 108, 108, (108, 108), ((108, 108),), 108),
    ]  # fmt: skip
    details = world.upgrade(_kept(None))
    assert details == ["long", "list of long", "map state of long to long", "long"], "nothing changes twice"


@pytest.mark.parametrize("snapshots", [0, 2], ids=["deltas", "snapshots"])
@pytest.mark.parametrize(("ttl", "lives_ms"), [("5s", 5_000), ("20s", 20_000)])
def test_another_duration_counts_for_what_is_stored(
    tmp_path: Path, backend: str, snapshots: int, ttl: str, lives_ms: int
) -> None:
    world = Living(tmp_path, _kept("10s"), ("at",))
    world.step(_step(0, backend, snapshots), WRITTEN)
    assert world.upgrade(_kept(ttl))[0] == (
        f"ttl 10s since write becomes ttl {ttl} since write, also for values that are stored already"
    )
    world.step(_step(lives_ms - 1, backend), [])
    assert world.stored() == ALL
    world.step(_step(1, backend), [])
    assert world.stored() == []
    world.step(_step(2_000, backend, lost=True), [])
    assert world.state() == {}


def test_a_stored_schema_says_the_ttl_and_gives_the_lineage_back(tmp_path: Path) -> None:
    world = Living(tmp_path, _kept(None), ("at",))
    for function in (_kept("10s"), _kept("20s"), _kept("20s", "event"), _kept(None)):
        world.upgrade(function)
        assert lineage_of(world._schema) == world._lineage
