"""The Nexmark queries as Holdfast jobs: from a stream of events to the stream that a sink shows.

What each has to give is said in `expected`. Where the rows of an epoch can be combined before state is
touched, a transform does it: Spark SQL over the rows of one epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import holdfast as hf
from bench.nexmark.event_time import HighestBids, NewSellers
from bench.nexmark.expected import SIDE_FACTOR, SIDE_ROWS
from bench.nexmark.functions import (
    BidsPerWindow,
    BidsWithAuction,
    FirstSeen,
    LastBid,
    LastTenAverage,
    SellerOfAuction,
    TopTen,
    WinningBids,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Stream = Any
EUROS = "CAST(0.908 * price AS decimal(23, 3)) AS price"
TIME_TYPE = (
    "CASE WHEN hour(date_time) BETWEEN 8 AND 18 THEN 'dayTime' "
    "WHEN hour(date_time) <= 6 OR hour(date_time) >= 20 THEN 'nightTime' ELSE 'otherTime' END AS time_type"
)
C_COUNTS = "length(extra) - length(replace(extra, 'c', '')) AS c_counts"
DAY = "date_format(date_time, 'yyyy-MM-dd') AS day"
LEVELS = "1 | CASE WHEN price < 10000 THEN 2 WHEN price < 1000000 THEN 4 ELSE 8 END"
"""Bit 0 for any bid, bits 1 to 3 for the levels of its price."""


def bids(df: DataFrame) -> DataFrame:
    return df.where("kind = 2").select("number", "date_time", "bid.*")


def with_side_input(df: DataFrame) -> DataFrame:
    """Bids with the value of the side input, which is small enough to be sent to every task."""
    value = f"concat('side-', id * {SIDE_FACTOR} % {SIDE_ROWS})"
    side = df.sparkSession.range(SIDE_ROWS).selectExpr("id AS key", f"{value} AS value").hint("broadcast")
    return df.join(side, df["auction"] % SIDE_ROWS == side["key"])


def q0(events: Stream, uid: str) -> Stream:
    return events.transform(lambda df: bids(df).select("auction", "bidder", "price", "date_time", "extra"))


def q1(events: Stream, uid: str) -> Stream:
    columns = ("auction", "bidder", EUROS, "date_time", "extra")
    return events.transform(lambda df: bids(df).selectExpr(*columns))


def q2(events: Stream, uid: str) -> Stream:
    return events.transform(lambda df: bids(df).where("auction % 123 = 0").select("auction", "price"))


def q3(events: Stream, uid: str) -> Stream:
    sellers = events.transform(
        lambda df: df.where("person.state IN ('OR', 'ID', 'CA') OR auction.category = 10").selectExpr(
            "coalesce(person.id, auction.seller) AS seller",
            "CASE WHEN kind = 0 THEN struct(person.name, person.city, person.state) END AS person",
            "auction.id AS auction",
        )
    )
    return sellers.key_by("seller").process(SellerOfAuction(), uid=f"{uid}-sellers")


def q4(events: Stream, uid: str) -> Stream:
    # An outbid auction counts once: what its category gains is the difference to its former price.
    gains = winning(events, uid).transform(
        lambda df: df.selectExpr(
            "category", "price - coalesce(former, 0) AS gain", "CAST(former IS NULL AS int) AS sold"
        )
    )
    totals = gains.key_by("category").aggregate(
        uid=f"{uid}-totals", total=hf.sum("gain"), sold=hf.sum("sold")
    )
    return totals.transform(lambda df: df.selectExpr("category", "total / sold AS average"))


def q5(events: Stream, uid: str) -> Stream:
    rows = events.transform(lambda df: bids(df).select("auction", "date_time"))
    windows = rows.key_by("auction").window(hf.sliding("10s", every="2s"), on="date_time")
    return windows.aggregate(uid=f"{uid}-counts", num=hf.count()).transform(hottest)


def hottest(df: DataFrame) -> DataFrame:
    """A window closes for all auctions in the same epoch, so that its highest count is that of the epoch."""
    place = "rank() OVER (PARTITION BY window_end ORDER BY num DESC) AS place"
    return df.selectExpr("*", place).where("place = 1").drop("place", "revision")


def q6(events: Stream, uid: str) -> Stream:
    return winning(events, uid).key_by("seller").process(LastTenAverage(), uid=f"{uid}-averages")


def q7(events: Stream, uid: str) -> Stream:
    windows = events.transform(highest_bids).key_by("slot").window(hf.tumbling("10s"), on="date_time")
    return windows.process(HighestBids(), uid=f"{uid}-highest")


def highest_bids(df: DataFrame) -> DataFrame:
    """Of an epoch's bids those that can win: the highest of each window. `slot` spreads windows over
    shards."""
    columns = ("auction", "bidder", "price", "date_time", "extra")
    rows = bids(df).selectExpr(*columns, "unix_seconds(date_time) DIV 10 AS slot")
    place = "rank() OVER (PARTITION BY slot ORDER BY price DESC) AS place"
    return rows.selectExpr("*", place).where("place = 1").drop("place")


def q8(events: Stream, uid: str) -> Stream:
    rows = events.transform(
        lambda df: df.where("kind <> 2").selectExpr(
            "coalesce(person.id, auction.seller) AS id",
            "person.name",
            "window(date_time, '10 seconds').start AS window_start",
        )
    )
    return rows.key_by("id", "window_start").process(NewSellers(), uid=f"{uid}-windows")


def q9(events: Stream, uid: str) -> Stream:
    return winning(events, uid).transform(lambda df: df.drop("former"))


def winning(events: Stream, uid: str) -> Stream:
    rows = events.transform(partial(auctions_and_bids, ("bidder", "price")))
    return rows.key_by("id").process_batch(WinningBids(), uid=f"{uid}-winning")


def auctions_and_bids(columns: tuple[str, ...], df: DataFrame) -> DataFrame:
    """Auctions, and bids with these columns, under the id of the auction."""
    auction = ("item_name", "initial_bid", "reserve", "expires", "seller", "category")
    return df.where("kind <> 0").selectExpr(
        "coalesce(auction.id, bid.auction) AS id", "number", "date_time",
        *(f"auction.{name}" for name in auction), *(f"bid.{name}" for name in columns),
    )  # fmt: skip


def q11(events: Stream, uid: str) -> Stream:
    rows = events.transform(lambda df: bids(df).select("bidder", "date_time"))
    sessions = rows.key_by("bidder").window(hf.session("10s"), on="date_time")
    return sessions.aggregate(uid=f"{uid}-sessions", bids=hf.count())


def q12(events: Stream, uid: str) -> Stream:
    rows = events.transform(lambda df: bids(df).select("bidder"))
    return rows.key_by("bidder").process_batch(BidsPerWindow(), uid=f"{uid}-windows")


def q13(events: Stream, uid: str) -> Stream:
    columns = ("auction", "bidder", "price", "date_time", "value")
    return events.transform(lambda df: with_side_input(bids(df)).select(*columns))


def q14(events: Stream, uid: str) -> Stream:
    columns = ("auction", "bidder", EUROS, TIME_TYPE, "date_time", "extra", C_COUNTS)
    wanted = "0.908 * price > 1000000 AND 0.908 * price < 50000000"
    return events.transform(lambda df: bids(df).where(wanted).selectExpr(*columns))


def q15(events: Stream, uid: str) -> Stream:
    """Counting distinct values takes two steps: each day and bidder (or auction) says once that it is new at
    a price level, and the day sums up."""
    parts = [events.transform(partial(day_part, "bids", level_counts))]
    for column, name in (("bidder", "bidders"), ("auction", "auctions")):
        levels = events.transform(partial(levels_by, column))
        firsts = levels.key_by("day", column).process_batch(FirstSeen(), uid=f"{uid}-{name}")
        parts.append(firsts.transform(partial(day_part, name, lambda df: df)))
    sums = {column: hf.sum(column) for column in day_columns()}
    return parts[0].union(*parts[1:]).key_by("day").aggregate(uid=f"{uid}-days", **sums)


def levels_by(column: str, df: DataFrame) -> DataFrame:
    rows = bids(df).selectExpr(DAY, column, f"{LEVELS} AS level")
    return rows.groupBy("day", column).agg({"level": "bit_or"}).toDF("day", column, "levels")


def level_counts(df: DataFrame) -> DataFrame:
    rows = bids(df).selectExpr(DAY, f"{LEVELS} AS levels")
    return rows.selectExpr("day", *(f"levels >> {level} & 1 AS level{level}" for level in range(4)))


def day_columns() -> list[str]:
    names = ("bids", "bidders", "auctions")
    return [f"{level}_{name}" for name in names for level in ("total", "rank1", "rank2", "rank3")]


def day_part(name: str, made: Callable[[DataFrame], DataFrame], df: DataFrame) -> DataFrame:
    """What an epoch adds to the counts of one name, per day; the other counts get 0."""
    own = [column for column in day_columns() if column.endswith(f"_{name}")]
    sums = [f"sum(level{own.index(each)})" if each in own else "0" for each in day_columns()]
    columns = [f"CAST({value} AS long) AS {each}" for each, value in zip(day_columns(), sums, strict=True)]
    return made(df).groupBy("day").agg(*map(expression, columns))


def expression(text: str) -> Any:
    from pyspark.sql.functions import expr

    return expr(text)


def q17(events: Stream, uid: str) -> Stream:
    ranks = ("price < 10000", "price >= 10000 AND price < 1000000", "price >= 1000000")
    counted = [f"CAST({rank} AS int) AS rank{number}" for number, rank in enumerate(ranks, start=1)]
    priced = events.transform(lambda df: bids(df).selectExpr("auction", DAY, "price", *counted))
    return priced.key_by("auction", "day").aggregate(
        uid=f"{uid}-statistics",
        total_bids=hf.count(),
        rank1_bids=hf.sum("rank1"),
        rank2_bids=hf.sum("rank2"),
        rank3_bids=hf.sum("rank3"),
        min_price=hf.min("price"),
        max_price=hf.max("price"),
        avg_price=hf.mean("price"),
        sum_price=hf.sum("price"),
    )


def q18(events: Stream, uid: str) -> Stream:
    columns = ("bidder", "auction", "price", "channel", "url", "date_time", "extra", "number")
    rows = events.transform(lambda df: bids(df).select(*columns))
    return rows.key_by("bidder", "auction").process_batch(LastBid(), uid=f"{uid}-last")


def q19(events: Stream, uid: str) -> Stream:
    columns = ("auction", "number", "bidder", "price", "date_time", "extra")
    rows = events.transform(lambda df: bids(df).select(*columns))
    return rows.key_by("auction").process_batch(TopTen(), uid=f"{uid}-top")


def q20(events: Stream, uid: str) -> Stream:
    rows = events.transform(partial(auctions_and_bids, ("bidder", "price", "channel", "url")))
    return rows.key_by("id").process_batch(BidsWithAuction(), uid=f"{uid}-expanded")


def q22(events: Stream, uid: str) -> Stream:
    parts = (f"split_part(url, '/', {number + 3}) AS dir{number}" for number in range(1, 4))
    columns = ("auction", "bidder", "price", "channel", *parts)
    return events.transform(lambda df: bids(df).selectExpr(*columns))


QUERIES: dict[int, Callable[[Stream, str], Stream]] = {
    0: q0, 1: q1, 2: q2, 3: q3, 4: q4, 5: q5, 6: q6, 7: q7, 8: q8, 9: q9, 11: q11, 12: q12, 13: q13, 14: q14,
    15: q15, 17: q17, 18: q18, 19: q19, 20: q20, 22: q22,
}  # fmt: skip
"""From the events, and what the uids of the operators begin with, to the stream that is shown."""


EVENT_TIME = frozenset({5, 7, 8, 11})
"""Those that go by event time."""


def job(source: hf.Source, sinks: Mapping[int, hf.Sink], disorder_us: int) -> hf.Job:
    """A job of some queries over the same events, each with its sink; `disorder_us`: how far these are out of
    order."""
    made = hf.Job("nexmark-" + "-".join(f"q{query}" for query in sinks))
    events: Stream = made.source(source, uid="events")
    if EVENT_TIME & sinks.keys():
        events = events.watermark("date_time", delay=f"{-(-disorder_us // 1_000)}ms")
    for query, sink in sinks.items():
        QUERIES[query](events, f"q{query}").sink(sink, uid=f"q{query}")
    return made
