"""Operators over two streams on a real Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.connectors.memory import SimulatedCrash
from tests.spark.jobs import run, run_through_crashes


class Balance(hf.CoFunction):
    """Numbers the rows of an account, and keeps its balance: a gap or a repeat shows a row lost or seen
    twice."""

    output = "account string, n long, balance long"
    n = hf.ValueState("long", default=0)
    balance = hf.ValueState("long", default=0)

    def process_left(self, row: Any, ctx: Any) -> Any:
        self.n.value += 1
        self.balance.value += row.amount
        yield row.account, self.n.value, self.balance.value

    def process_right(self, row: Any, ctx: Any) -> Any:
        self.n.value += 1
        self.balance.value -= row.spent
        yield ctx.key, self.n.value, self.balance.value


PAID_IN = [(f"a{i % 5}", i) for i in range(60)]
SPENT = [(i, f"a{i % 7}") for i in range(42)]


def balance_job(paid_in: list[Any], spent: list[Any], sink: Any) -> hf.Job:
    job = hf.Job("balances")
    left = job.source(hf.MemorySource(paid_in, schema="account string, amount long"), uid="in")
    right = job.source(hf.MemorySource(spent, schema="spent long, `from.account` string"), uid="spent")
    same_type = right.transform(lambda df: df.where("spent >= 0"))
    balances = left.key_by("account").connect(same_type.key_by("from.account"))
    balances.process(Balance(), uid="balance").sink(sink, uid="out")
    return job


def test_two_streams_share_state_through_crashes_and_rescaling(spark: SparkSession, tmp_path: Path) -> None:
    sink = hf.MemorySink()
    half = balance_job(PAID_IN[:30], [*SPENT[:10], hf.CRASH, *SPENT[10:21]], sink)
    assert run_through_crashes(half, spark, tmp_path / "ck", parallelism=2, max_rows_per_epoch=15) == 1
    run(balance_job(PAID_IN, SPENT, sink), spark, tmp_path / "ck", parallelism=3)
    rows = sink.rows()
    assert len(rows) == len(PAID_IN) + len(SPENT)
    for account in {row[0] for row in rows}:
        own = sorted(row[1:] for row in rows if row[0] == account)
        assert [n for n, _ in own] == list(range(1, len(own) + 1))
        total = sum(amount for who, amount in PAID_IN if who == account)
        assert own[-1][1] == total - sum(spent for spent, who in SPENT if who == account)


def test_key_types_after_transforms_are_compared(spark: SparkSession, tmp_path: Path) -> None:
    job = hf.Job("unequal")
    left = job.source(hf.MemorySource([("a", 1)], schema="k string, n long"), uid="left")
    number = left.transform(lambda df: df.selectExpr("cast(n as int) as k"))
    left.key_by("k").connect(number.key_by("k")).process(Balance(), uid="both").sink(
        hf.MemorySink(), uid="out"
    )
    with pytest.raises(hf.DefinitionError, match="key column 'k' of the left stream is string, 'k' of the r"):
        run(job, spark, tmp_path / "ck")


HOUR = datetime(2026, 1, 1, 12, tzinfo=UTC)


def seconds(count: float) -> datetime:
    return HOUR + timedelta(seconds=count)


class Ads:
    """Ads that are shown every 10 s, with a click 3 s later on every second one; joined within 5 s."""

    shown: ClassVar = [(f"ad{n % 4}", seconds(10 * n), n) for n in range(40)]
    clicked: ClassVar = [(seconds(10 * n + 3), f"ad{n % 4}", n) for n in range(0, 40, 2)]

    def __init__(self, shown: list[Any], clicked: list[Any], sinks: Any = None, window: Any = None) -> None:
        self.out, self.behind = sinks or (hf.MemorySink(), hf.MemorySink())
        self.job = hf.Job("ads")
        ads = hf.MemorySource(shown, schema="ad string, ts timestamp, n long")
        clicks = hf.MemorySource(clicked, schema="at timestamp, ad string, n long")
        left = self.job.source(ads, uid="shown").watermark("ts", delay="15s").key_by("ad")
        right = self.job.source(clicks, uid="clicked").watermark("at", delay="15s").key_by("ad")
        if window is None:
            joined = left.interval_join(right, on=("ts", "at"), within=("0s", "5s"), how="left", uid="join")
        else:
            joined = left.window_join(right, window, on=("ts", "at"), how="left", uid="join")
        joined.sink(self.out, uid="out")
        joined.late().sink(self.behind, uid="late")

    @property
    def pairs(self) -> list[tuple[int, int | None]]:
        return sorted((row[2], row[4]) for row in self.out.rows())


def kept(checkpoint: Path) -> list[Any]:
    """The rows that the join holds, with their times."""
    with hf.StateReader(str(checkpoint)) as reader:
        states = [reader.get("join", f"ad{n}").values["left_rows"] for n in range(4)]
    return [row for state in states for row in state or ()]


def test_an_interval_join_through_a_crash_and_rescaling(spark: SparkSession, tmp_path: Path) -> None:
    first = Ads([*Ads.shown[:20], hf.CRASH], Ads.clicked[:8])
    with pytest.raises(SimulatedCrash):
        run(first.job, spark, tmp_path / "ck", parallelism=2, max_rows_per_epoch=12)
    assert 0 < len(first.pairs) < 20, "rows are still kept"
    assert kept(tmp_path / "ck")
    behind = ("ad0", seconds(0), 99)
    second = Ads([*Ads.shown, behind], Ads.clicked, sinks=(first.out, first.behind))
    run(second.job, spark, tmp_path / "ck", parallelism=3, max_rows_per_epoch=12)
    assert second.pairs == [(n, None if n % 2 else n) for n in range(40)]
    ((side, left, right, watermark),) = second.behind.rows()
    assert (side, left["n"], right) == ("left", 99, None)
    assert watermark > left["ts"]
    assert kept(tmp_path / "ck") == []


def test_a_window_join_through_a_crash_and_rescaling(spark: SparkSession, tmp_path: Path) -> None:
    window = hf.sliding("20s", every="10s")
    first = Ads([*Ads.shown[:20], hf.CRASH], Ads.clicked[:8], window=window)
    with pytest.raises(SimulatedCrash):
        run(first.job, spark, tmp_path / "ck", parallelism=2, max_rows_per_epoch=6)
    given_out = first.out.rows()
    assert 0 < len(given_out) < 40, "some windows are open"
    behind = ("ad0", seconds(0), 99)
    second = Ads([*Ads.shown, behind], Ads.clicked, sinks=(first.out, first.behind), window=window)
    run(second.job, spark, tmp_path / "ck", parallelism=3, max_rows_per_epoch=12)
    found = sorted((row[4], (row[1] - HOUR).total_seconds(), row[6]) for row in second.out.rows())
    partner = [None if n % 2 else n for n in range(40)]
    assert found == [(n, 10 * n - back, partner[n]) for n in range(40) for back in (10, 0)]
    assert {row[2] - row[1] for row in second.out.rows()} == {timedelta(seconds=20)}
    ((side, left, _, _),) = second.behind.rows()
    assert (side, left["n"]) == ("left", 99)
    with pytest.raises(hf.RestoreError, match=r"holds windows of 20s every 10s, and tumbling windows of 10s"):
        run(Ads(Ads.shown, Ads.clicked, window=hf.tumbling("10s")).job, spark, tmp_path / "ck")
