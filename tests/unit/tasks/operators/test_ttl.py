"""States with a ttl: what user code sees of them, and that what has expired is removed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.checkpoint.store.records import NextDue
from holdfast.graph.aggregates import Aggregation
from holdfast.state.encoding.layout import in_time_index
from holdfast.state.encoding.ttl import Ttl
from holdfast.tasks.operators import expiry
from holdfast.tasks.operators.dispatch import next_due
from holdfast.tasks.operators.result import EventTime
from tests.unit.tasks.operators.operator_kit import ALL_GROUPS, Harness

SCHEMA = pa.schema([("user", pa.string()), ("what", pa.string())])
SECOND = 1_000


class Everything(hf.KeyedFunction):
    """Does what its rows say, and shows all of its state."""

    output = "user string, value long, items array<long>, entries map<string,long>, reduced long, added long"
    value = hf.ValueState("long", default=-1, ttl="10s")
    items = hf.ListState("long", ttl="10s")
    entries = hf.MapState("string", "long", ttl="10s")
    reduced = hf.ReducingState("long", max, ttl="10s")
    added = hf.AggregatingState(
        "long",
        create=lambda: 0,
        add=lambda a, x: a + x,
        merge=lambda a, b: a + b,
        result=lambda a: a,
        ttl="10s",
    )

    def process(self, row: Any, ctx: Any) -> Iterator[Any]:
        what, _, given = row.what.partition(" ")
        if what == "write":
            number = int(given)
            self.value.value = number
            self.items.append(number)
            self.entries[given] = number
            self.reduced.add(number)
            self.added.add(number)
        elif what == "clear":
            for state in (self.value, self.items, self.entries, self.reduced, self.added):
                state.clear()
        yield (
            row.user,
            self.value.value,
            list(self.items),
            dict(self.entries),
            self.reduced.value,
            self.added.value,
        )


class Reading(hf.KeyedFunction):
    """Reads, or does not, states that are kept as long as they are read."""

    output = "user string, value long, items array<long>, entry long, reduced long"
    value = hf.ValueState("long", ttl="16s", since="read")
    items = hf.ListState("long", ttl="16s", since="read")
    entries = hf.MapState("string", "long", ttl="16s", since="read")
    reduced = hf.ReducingState("long", max, ttl="16s", since="read")

    def process(self, row: Any, ctx: Any) -> Iterator[Any]:
        if row.what == "write":
            self.value.value = 1
            self.items.append(1)
            self.entries["a"] = 1
            self.entries["b"] = 1
            self.reduced.add(1)
        elif row.what != "pass":
            yield row.user, self.value.value, list(self.items), self.entries.get("a"), self.reduced.value
            if row.what == "fail":
                raise ValueError("as told")


NOTHING = (-1, [], [], None, None)
ONE = (1, [1], [("1", 1)], 1, 1)


def seen(harness: Harness, clock_s: float, what: str = "look", user: str = "ann") -> Any:
    result = harness.epoch_of([(user, what)], clock_ms=int(clock_s * SECOND))
    (row,) = result.outputs[""].to_pylist()
    return tuple(row.values())[1:]


def stored(harness: Harness) -> int:
    """How many entries there are, those of the index included."""
    return len(harness.state.entries)


def due_of(harness: Harness) -> NextDue | None:
    state: Any = harness.state
    return next_due(harness.function, harness.layout, ALL_GROUPS, state, EventTime())


@pytest.fixture
def everything() -> Harness:
    return Harness(Everything(), SCHEMA, ["user"])


def test_a_value_is_there_until_the_moment_of_its_expiry_and_not_from_then_on(everything: Harness) -> None:
    assert seen(everything, 100, "write 1") == ONE
    assert seen(everything, 109.999) == ONE
    assert seen(everything, 110) == NOTHING


def test_a_write_of_what_was_there_counts_as_a_write(everything: Harness) -> None:
    seen(everything, 100, "write 1")
    seen(everything, 109, "write 1")
    assert seen(everything, 118.9)[0] == 1
    assert seen(everything, 119) == NOTHING


def test_items_and_entries_expire_one_by_one(everything: Harness) -> None:
    seen(everything, 100, "write 1")
    assert seen(everything, 105, "write 2") == (2, [1, 2], [("1", 1), ("2", 2)], 2, 3)
    assert seen(everything, 112) == (2, [2], [("2", 2)], 2, 3)
    assert seen(everything, 113, "write 3") == (3, [2, 3], [("2", 2), ("3", 3)], 3, 6)
    assert seen(everything, 116) == (3, [3], [("3", 3)], 3, 6)
    assert seen(everything, 123) == NOTHING


def test_what_has_expired_is_removed_without_rows_and_leaves_nothing(everything: Harness) -> None:
    for user in ("ann", "ben", "x" * 500):
        seen(everything, 100, "write 1", user)
    everything.epoch_of([], clock_ms=109 * SECOND)
    assert stored(everything) > 0
    everything.epoch_of([], clock_ms=120 * SECOND)
    left = [key for key in everything.state.entries if key[-1:] != b"\xff"]
    assert left == []
    assert stored(everything) == 1, "the whole of a long key, of which a map may hold something"


def test_removal_is_a_deletion_in_the_delta(everything: Harness) -> None:
    seen(everything, 100, "write 1")
    changes = everything.epoch_of([], clock_ms=120 * SECOND).changes
    assert changes.values["value"].deleted is not None
    assert changes.values["value"].deleted.tolist() == [True]
    assert changes.entries["items"].deleted.tolist() == changes.entries["entries"].deleted.tolist() == [True]
    assert changes.headers["items"].deleted.tolist() == [True]


def test_an_epoch_looks_at_a_bounded_number_and_the_rest_is_still_due(
    everything: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = expiry.expire
    monkeypatch.setattr("holdfast.tasks.operators.dispatch.expire", lambda *given: limited(*given, limit=7))
    for user in range(20):
        seen(everything, 100, "write 1", str(user))
    epochs = 0
    while stored(everything):
        before = stored(everything)
        everything.epoch_of([], clock_ms=120 * SECOND)
        assert before - 5 * 2 * 7 <= stored(everything) < before
        epochs += 1
    assert epochs == 7, "20 lists, each of which is looked up and has an item, 7 of these at a time"


def test_many_writes_leave_few_places_in_the_index(everything: Harness) -> None:
    for tenth in range(40):
        seen(everything, 100 + tenth / 10, "write 1")
    places = [key for key in everything.state.entries if in_time_index(key)]
    assert len(places) <= 5 * (4 + 1)


def test_when_something_is_due_is_known_in_coarse_steps(everything: Harness) -> None:
    seen(everything, 100.2, "write 1")

    def due() -> int | None:
        found = due_of(everything)
        assert found is not None
        assert found.event_us is None
        return found.processing_us

    assert due() == 111 * 1_000_000
    everything.epoch_of([], clock_ms=111 * SECOND)
    assert due() is None


def test_what_the_function_does_in_the_epoch_of_the_expiry_counts(everything: Harness) -> None:
    seen(everything, 100, "write 1")
    assert seen(everything, 120, "write 2") == (2, [2], [("2", 2)], 2, 2)
    assert seen(everything, 121) == (2, [2], [("2", 2)], 2, 2)
    seen(everything, 122, "clear")
    everything.epoch_of([], clock_ms=200 * SECOND)
    assert stored(everything) == 0


def test_reading_keeps_what_is_kept_since_it_was_read() -> None:
    harness = Harness(Reading(), SCHEMA, ["user"])
    harness.epoch_of([("ann", "write")], clock_ms=100 * SECOND)
    for second in range(102, 150, 10):
        assert seen(harness, second) == (1, [1], 1, 1)
    assert "b" not in str(harness.epoch_of([("ann", "pass")], clock_ms=151 * SECOND).changes.entries)
    entries = harness.state.entries
    harness.epoch_of([], clock_ms=152 * SECOND)
    live = [key for key in entries if not in_time_index(key)]
    assert len(live) == 5, "the entry 'b', which was never read, is gone; one has a header"
    assert seen(harness, 159) == (None, [], None, None)


def test_what_is_not_read_is_not_kept() -> None:
    harness = Harness(Reading(), SCHEMA, ["user"])
    harness.epoch_of([("ann", "write")], clock_ms=100 * SECOND)
    for second in range(102, 116, 2):
        harness.epoch_of([("ann", "pass")], clock_ms=second * SECOND)
    assert seen(harness, 116) == (None, [], None, None)


def test_reading_writes_at_most_once_in_a_sixteenth_of_the_ttl() -> None:
    harness = Harness(Reading(), SCHEMA, ["user"])
    harness.epoch_of([("ann", "write")], clock_ms=100 * SECOND)

    def written(clock_s: float) -> set[str]:
        changes = harness.epoch_of([("ann", "look")], clock_ms=int(clock_s * SECOND)).changes
        return {*changes.values, *changes.entries}

    assert written(100.9) == set()
    assert written(101) == {"value", "items", "entries", "reduced"}
    assert written(101.5) == set()


def test_a_row_that_is_set_aside_keeps_nothing() -> None:
    harness = Harness(Reading(), SCHEMA, ["user"], on_error="dead-letter")
    harness.epoch_of([("ann", "write")], clock_ms=100 * SECOND)
    changes = harness.epoch_of([("ann", "fail")], clock_ms=110 * SECOND).changes
    assert not changes.values
    assert not changes.entries


class ByEventTime(hf.KeyedFunction):
    output = "user string, value long"
    value = hf.ValueState("long", ttl="10s", clock="event")

    def process(self, row: Any, ctx: Any) -> Iterator[Any]:
        if row.what == "write":
            self.value.value = 1
        yield row.user, self.value.value


def test_event_time_is_that_of_the_watermark_and_counts_from_when_it_is_known() -> None:
    harness = Harness(ByEventTime(), SCHEMA, ["user"])

    def at(watermark_s: int | None, *rows: str) -> list[Any]:
        now_us = None if watermark_s is None else watermark_s * 1_000_000
        result = harness.epoch_of([("ann", what) for what in rows], EventTime(None, now_us), 1 << 40)
        return [row["value"] for row in result.outputs[""].to_pylist()]

    assert at(None, "write") == [1]
    assert at(None, "look") == [1]
    assert due_of(harness) == NextDue(event_us=-(1 << 52) * 1_000), "as soon as there is a watermark"
    assert at(1_000) == []
    assert at(1_009, "look") == [1]
    assert at(1_010, "look") == [None]
    assert stored(harness) == 0
    at(1_010, "write")
    assert at(1_019, "look") == [1]
    assert at(1_020) == []
    assert stored(harness) == 0


def test_expired_values_of_columns_are_null_or_the_default() -> None:
    class Shown(hf.BatchFunction):
        output = "user string, n long, other long"
        n = hf.ValueState("long", ttl="10s")
        other = hf.ValueState("long", default=7, ttl="10s", since="read")

        def process(self, rows: pa.Table, ctx: Any) -> pa.Table:
            if rows["what"][0].as_py() == "write":
                self.n.column = pa.array([1] * len(ctx.keys))
                self.other.column = pa.array([2] * len(ctx.keys))
            return pa.table({"user": ctx.keys["user"], "n": self.n.column, "other": self.other.column})

    harness = Harness(Shown(), SCHEMA, ["user"])
    harness.epoch_of([("ann", "write")], clock_ms=100 * SECOND)
    assert seen(harness, 105) == (1, 2)
    assert seen(harness, 110) == (None, 2)
    assert seen(harness, 120) == (None, 7)
    assert stored(harness) == 0


def test_an_aggregate_with_a_ttl_begins_from_nothing() -> None:
    harness = Harness(Aggregation({"n": hf.count()}, Ttl(10_000)), SCHEMA, ["user"])
    assert [seen(harness, at) for at in (100, 105, 114, 124)] == [(1,), (2,), (3,), (1,)]
    harness.epoch_of([], clock_ms=200 * SECOND)
    assert stored(harness) == 0


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"ttl": "0s"}, "ttl='0s' is no time at all; give at least '1ms'"),
        ({"ttl": "-1s"}, "ttl='-1s' is negative; give a duration such as '7d'"),
        ({"ttl": "soon"}, "ttl='soon' is not a duration"),
        ({"ttl": 7}, "ttl=7 is not text; write a duration such as '7d'"),
        ({"ttl": "400000d"}, "longer than 1000 years"),
        ({"ttl": "30000000d"}, "ttl='30000000d' is longer than 73,000 years; give "),
        ({"ttl": "7d", "since": "birth"}, "since='birth' is not known; use one of 'write', 'read'"),
        ({"ttl": "7d", "clock": "wall"}, "clock='wall' is not known; use one of 'processing', 'event'"),
        ({"since": "read"}, "since means nothing without a ttl; give ttl='7d' too"),
        ({"clock": "event"}, "clock means nothing without a ttl"),
    ],
)
def test_what_cannot_be_a_ttl_is_refused(declared: Any, message: str) -> None:
    for declare in (
        lambda: hf.ValueState("long", **declared),
        lambda: hf.ListState("long", **declared),
        lambda: hf.MapState("string", "long", **declared),
        lambda: hf.ReducingState("long", max, **declared),
    ):
        with pytest.raises(hf.DefinitionError, match=message.replace("(", r"\(")):
            declare()
