"""The Nexmark queries in Spark Structured Streaming, over the same events.

Where SQL on streams can say it, SQL says it, and all of it runs in the JVM. What it cannot say is kept by
`transformWithState`, in Python: an aggregate over results that change (4, 6), an aggregate that shows its
changes after a join of streams, which allows appending only (4, 6, 9), and ranks (19). `count(DISTINCT)` is
refused on streams (15): the size of a collected set stands in for it. Windows are shown when the watermark
has passed them, so the last ones are still open when the input ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from bench.nexmark.queries import C_COUNTS, DAY, EUROS, TIME_TYPE, bids, with_side_input
from bench.nexmark.spark_processors import AUCTION, CategoryAverage, LastTenAverage, TopTen, WinningBid

RANKS = ("price < 10000", "price >= 10000 AND price < 1000000", "price >= 1000000")
Mode = Literal["append", "update"]
SQL, PYTHON = "SQL", "transformWithState"


@dataclass(frozen=True)
class Baseline:
    """`build` makes the result from the events, and from how far they are out of order, as an interval.
    `because`: what Spark's SQL on streams refuses of the query."""

    build: Callable[[DataFrame, str], DataFrame]
    mode: Mode = "append"
    how: str = SQL
    because: str = ""


def q0(events: DataFrame, delay: str) -> DataFrame:
    return bids(events).select("auction", "bidder", "price", "date_time", "extra")


def q1(events: DataFrame, delay: str) -> DataFrame:
    return bids(events).selectExpr("auction", "bidder", EUROS, "date_time", "extra")


def q2(events: DataFrame, delay: str) -> DataFrame:
    return bids(events).where("auction % 123 = 0").select("auction", "price")


def q3(events: DataFrame, delay: str) -> DataFrame:
    people = events.where("person.state IN ('OR', 'ID', 'CA')").selectExpr(
        "person.id AS seller", "person.name", "person.city", "person.state"
    )
    auctions = events.where("auction.category = 10").selectExpr("auction.seller", "auction.id")
    return auctions.join(people, "seller").select("name", "city", "state", "id")


def q4(events: DataFrame, delay: str) -> DataFrame:
    by_category = bids_in_time(events).select("category", "id", "price").groupBy("category")
    return by_category.transformWithState(CategoryAverage(), CategoryAverage.output, "Append", "None")


def q5(events: DataFrame, delay: str) -> DataFrame:
    on_time = bids(events).withWatermark("date_time", delay)
    counts = on_time.groupBy(F.window("date_time", "10 seconds", "2 seconds"), "auction").agg(
        F.count("*").alias("num")
    )
    tops = counts.groupBy("window").agg(
        F.max("num").alias("most"), F.collect_list(F.struct("auction", "num")).alias("all")
    )
    hot = tops.select("window", F.explode(F.expr("filter(all, each -> each.num = most)")).alias("top"))
    return hot.selectExpr(
        "top.auction", "top.num", "window.start AS window_start", "window.end AS window_end"
    )


def q6(events: DataFrame, delay: str) -> DataFrame:
    sold = bids_in_time(events).selectExpr("seller", "id", "unix_micros(expires) AS ended", "price")
    return sold.groupBy("seller").transformWithState(
        LastTenAverage(), LastTenAverage.output, "Append", "None"
    )


def q7(events: DataFrame, delay: str) -> DataFrame:
    on_time = bids(events).withWatermark("date_time", delay)
    highest = on_time.groupBy(F.window("date_time", "10 seconds")).agg(
        F.max("price").alias("most"),
        F.collect_list(F.struct("auction", "bidder", "price", "date_time", "extra")).alias("all"),
    )
    return highest.select(F.explode(F.expr("filter(all, each -> each.price = most)")).alias("top")).select(
        "top.*"
    )


def q8(events: DataFrame, delay: str) -> DataFrame:
    on_time = events.withWatermark("date_time", delay)
    people = on_time.where("kind = 0").select(
        F.col("person.id").alias("id"), F.col("person.name").alias("name"),
        F.window("date_time", "10 seconds").alias("window"),
    )  # fmt: skip
    sellers = (
        on_time.where("kind = 1")
        .select(F.col("auction.seller").alias("id"), F.window("date_time", "10 seconds").alias("window"))
        .dropDuplicates(["id", "window"])
    )
    return people.join(sellers, ["id", "window"]).selectExpr("id", "name", "window.start AS window_start")


def q9(events: DataFrame, delay: str) -> DataFrame:
    columns = (
        "id",
        *AUCTION,
        "number",
        "bidder",
        "price",
        "bid_date_time",
        "unix_micros(bid_date_time) AS at",
    )
    by_auction = bids_in_time(events).selectExpr(*columns).groupBy("id")
    return by_auction.transformWithState(WinningBid(), WinningBid.output, "Append", "None")


def q11(events: DataFrame, delay: str) -> DataFrame:
    on_time = bids(events).withWatermark("date_time", delay)
    sessions = on_time.groupBy("bidder", F.session_window("date_time", "10 seconds").alias("window")).count()
    return sessions.selectExpr(
        "bidder", "count AS bids", "window.start AS window_start", "window.end AS window_end"
    )


def q12(events: DataFrame, delay: str) -> DataFrame:
    counts = bids(events).groupBy("bidder", F.window(F.current_timestamp(), "10 seconds")).count()
    return counts.selectExpr(
        "bidder", "count AS bids", "window.start AS window_start", "window.end AS window_end"
    )


def q13(events: DataFrame, delay: str) -> DataFrame:
    return with_side_input(bids(events)).select("auction", "bidder", "price", "date_time", "value")


def q14(events: DataFrame, delay: str) -> DataFrame:
    wanted = bids(events).where("0.908 * price > 1000000 AND 0.908 * price < 50000000")
    return wanted.selectExpr("auction", "bidder", EUROS, TIME_TYPE, "date_time", "extra", C_COUNTS)


def q15(events: DataFrame, delay: str) -> DataFrame:
    columns = []
    for name, counted in (("bids", None), ("bidders", "bidder"), ("auctions", "auction")):
        columns.append(F.expr(count_where("true", counted)).alias(f"total_{name}"))
        for number, rank in enumerate(RANKS, start=1):
            columns.append(F.expr(count_where(rank, counted)).alias(f"rank{number}_{name}"))
    return bids(events).selectExpr("price", "bidder", "auction", DAY).groupBy("day").agg(*columns)


def count_where(condition: str, distinct: str | None = None) -> str:
    """How many rows meet a condition, or how many different values of a column such rows have."""
    if distinct is None:
        return f"count(CASE WHEN {condition} THEN true END)"
    return f"CAST(size(collect_set(CASE WHEN {condition} THEN {distinct} END)) AS long)"


def q17(events: DataFrame, delay: str) -> DataFrame:
    counts = [
        F.expr(count_where(rank)).alias(f"rank{number}_bids") for number, rank in enumerate(RANKS, start=1)
    ]
    prices = [F.expr(f"{name}(price)").alias(f"{name}_price") for name in ("min", "max", "avg", "sum")]
    priced = bids(events).selectExpr("auction", DAY, "price")
    return priced.groupBy("auction", "day").agg(F.count("*").alias("total_bids"), *counts, *prices)


def q18(events: DataFrame, delay: str) -> DataFrame:
    row = F.struct("date_time", "number", "price", "channel", "url", "extra")
    last = bids(events).groupBy("bidder", "auction").agg(F.max(row).alias("last"))
    columns = ("price", "channel", "url", "date_time", "extra")
    return last.select("bidder", "auction", *(f"last.{name}" for name in columns))


def q19(events: DataFrame, delay: str) -> DataFrame:
    columns = ("auction", "number", "bidder", "price", "unix_micros(date_time) AS at", "extra")
    by_auction = bids(events).selectExpr(*columns).groupBy("auction")
    top = by_auction.transformWithState(TopTen(), TopTen.output, "Update", "None")
    return top.selectExpr("auction", "rank", "bidder", "price", "timestamp_micros(at) AS date_time", "extra")


def q20(events: DataFrame, delay: str) -> DataFrame:
    return auction_bids(events, "category = 10").selectExpr(
        "id AS auction", "bidder", "price", "channel", "url", "bid_date_time", *AUCTION[:-1]
    )


def q22(events: DataFrame, delay: str) -> DataFrame:
    parts = (f"split_part(url, '/', {number + 3}) AS dir{number}" for number in range(1, 4))
    return bids(events).selectExpr("auction", "bidder", "price", "channel", *parts)


def auction_bids(events: DataFrame, where: str = "true") -> DataFrame:
    """Bids joined with their auctions. Both sides are kept without end, as either may come first."""
    auctions = events.where("kind = 1").select("date_time", "auction.*").where(where).select("id", *AUCTION)
    made = bids(events).withColumnRenamed("date_time", "bid_date_time")
    return auctions.join(made, auctions["id"] == made["auction"])


def bids_in_time(events: DataFrame) -> DataFrame:
    return auction_bids(events).where("bid_date_time BETWEEN date_time AND expires")


BASELINES = {
    0: Baseline(q0),
    1: Baseline(q1),
    2: Baseline(q2),
    3: Baseline(q3),
    4: Baseline(q4, how=PYTHON, because="an aggregate of results that change"),
    5: Baseline(q5, because="no ranks on streams; lists of all counts stand in for them"),
    6: Baseline(q6, how=PYTHON, because="the newest ten of results that change"),
    7: Baseline(q7, because="no ranks on streams; lists of all bids stand in for them"),
    8: Baseline(q8),
    9: Baseline(q9, how=PYTHON, because="a join in append mode cannot show the best again"),
    11: Baseline(q11),
    12: Baseline(q12, "update"),
    13: Baseline(q13),
    14: Baseline(q14),
    15: Baseline(q15, "update", because="no count(DISTINCT); sizes of sets stand in for it"),
    17: Baseline(q17, "update"),
    18: Baseline(q18, "update"),
    19: Baseline(q19, "update", PYTHON, because="no ranks on streams"),
    20: Baseline(q20),
    22: Baseline(q22),
}
