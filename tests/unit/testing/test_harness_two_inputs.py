"""The harness for functions of two streams, keyed or broadcast: rows, time, crashes, mistakes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import holdfast as hf
from holdfast.graph.job_graph import Place
from holdfast.testing import Harness

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Balance(hf.CoFunction):
    output = "account string, seen string, balance long"
    balance = hf.ValueState("long", default=0)

    def process_left(self, row: Any, ctx: Any) -> Any:
        self.balance.value += row.amount
        yield ctx.key, "paid", self.balance.value

    def process_right(self, row: Any, ctx: Any) -> Any:
        if row.price is None:
            raise ValueError("no price")
        self.balance.value -= row.price
        yield row.buyer, "bought", self.balance.value


class Limits(hf.BroadcastFunction):
    """Gives out what is over the limit of its kind; a minute later, by which limits."""

    output = "user string, amount long, limits string"
    limits = hf.BroadcastState("string", "struct<most:long>")
    seen = hf.ValueState("long", default=0)

    def process_broadcast(self, row: Any, ctx: Any) -> Any:
        if row.most is None:
            del self.limits[row.kind]
        else:
            self.limits[row.kind] = {"most": row.most}

    def process(self, row: Any, ctx: Any) -> Any:
        self.seen.value += 1
        ctx.timers.event(row.ts + timedelta(minutes=1))
        if row.kind in self.limits and row.amount > self.limits[row.kind].most:
            yield row.user, row.amount, "over"

    def on_timer(self, at: datetime, ctx: Any) -> Any:
        yield ctx.key, self.seen.value, ",".join(f"{k}={v.most}" for k, v in sorted(self.limits.items()))


def balances(**options: Any) -> Harness:
    return Harness(
        Balance(),
        key="account",
        schema="account string, amount long, at long",
        right_key="buyer",
        right_schema="buyer string, price long, at long",
        **options,
    )


def limits(**options: Any) -> Harness:
    return Harness(
        Limits(),
        key="user",
        schema="user string, kind string, amount long, ts timestamp",
        right_schema="kind string, most long",
        **options,
    )


def test_both_streams_share_state_through_a_crash() -> None:
    accounts = balances()
    assert accounts.send_left(("anna", 5, 1)) == [("anna", "paid", 5)]
    accounts.crash()
    assert accounts.send_right({"buyer": "anna", "price": 2}) == [("anna", "bought", 3)]
    assert accounts.state("anna") == {"balance": 3}


def test_left_rows_of_an_epoch_come_first_unless_both_have_an_order() -> None:
    left, right = [("anna", 5, 9)], [("anna", 2, 1)]
    assert [row.seen for row in balances().send_both(left, right)] == ["paid", "bought"]
    ordered = balances(order_by="at", right_order_by="at")
    assert [row.seen for row in ordered.send_both(left, right)] == ["bought", "paid"]


def test_what_was_not_checkpointed_is_replayed_on_both_sides() -> None:
    accounts = balances(checkpoint_every=None)
    accounts.send_left(("anna", 5, 1))
    accounts.checkpoint()
    made = accounts.send_right(("anna", 2, 1)) + accounts.send_left(("anna", 9, 1))
    accounts.crash()
    assert accounts.state("anna") == {"balance": 5}
    assert accounts.replay() == made


def test_dead_letters_of_one_side() -> None:
    accounts = balances(on_error="dead-letter")
    accounts.send_both([("anna", 5, 1)], [("anna", None, 1)])
    (letter,) = accounts.dead_letters
    assert "no price" in letter.error
    assert accounts.state("anna") == {"balance": 5}


def test_rules_and_rows() -> None:
    charges = limits()
    assert charges.send(("anna", "card", 10, NOON)) == []
    assert charges.broadcast(("card", 5), ("cash", 7)) == []
    assert charges.send(("anna", "card", 10, NOON), ("ben", "cash", 7, NOON)) == [("anna", 10, "over")]
    assert charges.broadcast_state == {"limits": {"card": (5,), "cash": (7,)}}
    assert charges.state("anna") == {"seen": 2}
    charges.broadcast(("cash", None))
    assert charges.watermark(NOON + timedelta(minutes=2)) == [("anna", 2, "card=5"), ("ben", 1, "card=5")]


def test_a_crash_throws_rules_away_that_no_checkpoint_has() -> None:
    charges = limits(checkpoint_every=None)
    charges.broadcast(("card", 5))
    charges.checkpoint()
    charges.broadcast(("card", 50))
    made = charges.send(("anna", "card", 60, NOON))
    charges.crash()
    assert charges.broadcast_state == {"limits": {"card": (5,)}}
    assert charges.replay() == made == [("anna", 60, "over")]
    assert charges.broadcast_state == {"limits": {"card": (50,)}}


def test_a_rule_that_fails_changes_nothing() -> None:
    charges = limits()
    charges.broadcast(("card", 5))
    with pytest.raises(hf.UserCodeError, match="KeyError: 'bill'"):
        charges.broadcast(("card", 6), ("bill", None))
    assert charges.broadcast_state == {"limits": {"card": (5,)}}
    aside = limits(on_error="dead-letter")
    aside.broadcast(("card", 6), ("bill", None), ("card", 7))
    assert "KeyError" in aside.dead_letters[0].error
    assert aside.broadcast_state == {"limits": {"card": (7,)}}


def test_operators_of_a_job_are_found_with_both_their_streams() -> None:
    job = hf.Job("job")
    ts = "user string, kind string, amount long, ts timestamp"
    rows = job.source(hf.MemorySource([], schema=ts), uid="rows").watermark("ts")
    rules = job.source(hf.MemorySource([], schema="kind string, most long"), uid="rules")
    sold = rules.transform(lambda df: df.selectExpr("kind as buyer", "most as price", "1L as at"))
    left = job.source(hf.MemorySource([], schema="account string, amount long, at long"), uid="left")
    judged = rows.key_by("user").connect(rules.broadcast(order_by="most")).process(Limits(), uid="limits")
    paid = left.key_by("account", order_by="at").connect(sold.key_by("buyer", order_by="at"))
    paid.process(Balance(), uid="balance")
    judged.sink(hf.MemorySink(), uid="out")

    charges = Harness.of(job, "limits")
    charges.broadcast(("card", 9), ("card", 5), ("card", 7))
    assert charges.broadcast_state == {"limits": {"card": (9,)}}, "in the order of broadcast(order_by=...)"
    charges.send(("anna", "card", 1, NOON))
    assert charges.watermark(NOON + timedelta(hours=1)) == [("anna", 1, "card=9")]
    with pytest.raises(hf.DefinitionError, match=r"not known without Spark; give right_schema="):
        Harness.of(job, "balance")
    accounts = Harness.of(job, "balance", right_schema="buyer string, price long, at long")
    assert accounts.send_both([("a", 1, 2)], [("a", 3, 1)])[0].seen == "bought"
    with pytest.raises(hf.DefinitionError, match=r"job 'job' has no operator 'limits\.broadcast'; there are"):
        Harness.of(job, "limits.broadcast")


def test_an_interval_join() -> None:
    job = hf.Job("job")
    streams = [
        job.source(hf.MemorySource([], schema="k string, n long, ts timestamp"), uid=uid).watermark("ts")
        for uid in ("left", "right")
    ]
    left, right = (stream.key_by("k") for stream in streams)
    left.interval_join(right, on="ts", within=("0s", "5s"), how="left", uid="join")
    job.source(hf.MemorySource([], schema="k string"), uid="other").sink(hf.MemorySink(), uid="out")
    join = Harness.of(job, "join")
    assert join.send_left(("a", 1, NOON), ("a", 2, NOON + timedelta(minutes=1))) == []
    (pair,) = join.send_right(("a", 7, NOON + timedelta(seconds=3)))
    assert (pair.n, pair.n_right) == (1, 7)
    (alone,) = join.end_of_input()
    assert (alone.n, alone.n_right) == (2, None)


def test_what_does_not_fit_the_function_is_refused() -> None:
    with pytest.raises(hf.DefinitionError, match="Balance reads two streams, and their columns are not gues"):
        Harness(Balance(), key="account", schema="account string")
    with pytest.raises(hf.DefinitionError, match=r"say send_left\(...\) or send_right"):
        balances().send(("anna", 5, 1))
    with pytest.raises(hf.DefinitionError, match=r"Limits does not read two keyed streams; say send"):
        limits().send_right(("card", 5))
    with pytest.raises(hf.DefinitionError, match="Balance reads no broadcast stream"):
        balances().broadcast(("card", 5))
    with pytest.raises(hf.DefinitionError, match="key column 'whom' does not exist"):
        Harness(Balance(), key="a", schema="a string", right_schema="b string", right_key="whom")


def orders_and_payments() -> tuple[hf.Job, Any, Any]:
    job = hf.Job("shop")
    schema = "id long, ts timestamp"
    orders = job.source(hf.MemorySource([], schema=schema), uid="orders").watermark("ts", delay="1m")
    payments = job.source(hf.MemorySource([], schema=schema), uid="payments").watermark("ts", delay="1m")
    return job, orders.key_by("id"), payments.key_by("id")


def test_a_window_join_of_a_job_is_tested_as_it_was_declared() -> None:
    job, orders, payments = orders_and_payments()
    orders.window_join(payments, hf.tumbling("5m"), on="ts", how="left", uid="paid")
    paid = Harness.of(job, "paid")
    minute = timedelta(minutes=1)
    assert paid.send_left((1, NOON), (2, NOON)) == []
    assert paid.send_right((1, NOON + minute)) == []
    paid.crash()
    rows = sorted((row.id, row.ts, row.ts_right) for row in paid.watermark(NOON + 5 * minute))
    assert rows == [(1, NOON, NOON + minute), (2, NOON, None)]
    paid.send_right((2, NOON))
    assert [(row.side, row.right.id) for row in paid.late] == [("right", 2)]


def test_mistakes_of_an_operator_of_a_job_name_its_uid_and_where_it_was_declared() -> None:
    job = hf.Job("shop")
    orders = job.source(hf.MemorySource([], schema="id long, ts timestamp"), uid="orders")
    place = Place.of_caller()
    orders.key_by("id").interval_join(orders.key_by("id"), on="ts", within=("0s", "1h"), uid="sent")
    with pytest.raises(hf.DefinitionError) as refused:
        Harness.of(job, "sent")
    for line in str(refused.value).splitlines():
        assert f"{place.file.rpartition('/')[2]}:{place.line + 1} operator 'sent': the " in line


def test_a_failure_of_an_operator_of_a_job_names_its_uid() -> None:
    job, orders, payments = orders_and_payments()
    orders.connect(payments).process(Balance(), uid="balance")
    with pytest.raises(hf.UserCodeError, match="operator 'balance'"):
        Harness.of(job, "balance").send_left((1, NOON))
