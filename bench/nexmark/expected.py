"""What each query of Nexmark has to give, computed by DuckDB over all events at once.

The queries are those of the well-known SQL form of the benchmark: 0 to 9, 11 to 15, 17 to 20 and 22. A result
is a bag of rows: all that were ever emitted or, where a streaming engine emits a row again when it changes
(`key`), the last row of every key. Averages are doubles. Where the well-known form leaves the order of equal
rows open, the number of the event decides, so that there is one right answer.
Never here: anything of Holdfast or Spark.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import duckdb
import numpy as np
import pyarrow as pa

SIDE_ROWS = 10_000
SIDE_FACTOR = 7_919
"""The side input of query 13 has the keys below SIDE_ROWS; the value of k is 'side-' and k * SIDE_FACTOR
modulo SIDE_ROWS."""

_VIEWS = """
CREATE VIEW person AS SELECT number, date_time, unnest(person) FROM events WHERE kind = 0;
CREATE VIEW auction AS SELECT number, date_time, unnest(auction) FROM events WHERE kind = 1;
CREATE VIEW bid AS SELECT number, date_time, unnest(bid) FROM events WHERE kind = 2;
CREATE VIEW winning AS
    SELECT A.id, A.item_name, A.initial_bid, A.reserve, A.date_time, A.expires, A.seller, A.category,
           B.bidder, B.price, B.date_time AS bid_date_time
    FROM auction A JOIN bid B ON A.id = B.auction AND B.date_time BETWEEN A.date_time AND A.expires
    QUALIFY row_number() OVER (PARTITION BY A.id ORDER BY B.price DESC, B.date_time, B.number) = 1;
CREATE VIEW hop AS
    SELECT auction, count(*) AS num, ends - INTERVAL 10 SECOND AS window_start, ends AS window_end
    FROM (SELECT auction, unnest([time_bucket(INTERVAL 2 SECOND, date_time) + INTERVAL (2 * n) SECOND
                                  FOR n IN range(1, 6)]) AS ends FROM bid)
    GROUP BY auction, ends;
"""

_RANKS = ("price < 10000", "price >= 10000 AND price < 1000000", "price >= 1000000")


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """`sql` is over the views person, auction, bid. `key`: of the rows emitted for each, the last counts.
    `closes`: when the window of a row ends, of its columns; only rows of closed windows can be asked for.
    `emitted`: what of the emitted rows is compared, if not the columns of `sql`."""

    about: str
    sql: str
    key: tuple[str, ...] = ()
    closes: str = ""
    emitted: str = ""


def _ranked(aggregate: str, name: str) -> str:
    parts = [f"{aggregate} FILTER ({rank}) AS rank{n}_{name}" for n, rank in enumerate(_RANKS, start=1)]
    return ", ".join([f"{aggregate} AS total_{name}", *parts])


EXPECTATIONS = {
    0: Expectation(
        about="Every bid as it is: what it costs to move rows.",
        sql="SELECT auction, bidder, price, date_time, extra FROM bid",
    ),
    1: Expectation(
        about="Every bid with its price in euros: 0.908 times the price, three decimals.",
        sql="SELECT auction, bidder, CAST(0.908 * price AS decimal(23, 3)) AS price, date_time, extra "
        "FROM bid",
    ),
    2: Expectation(
        about="The bids on auctions whose id is divisible by 123.",
        sql="SELECT auction, price FROM bid WHERE auction % 123 = 0",
    ),
    3: Expectation(
        about="Who sells in category 10 from Oregon, Idaho or California: each auction with its seller.",
        sql="SELECT P.name, P.city, P.state, A.id FROM auction A JOIN person P ON A.seller = P.id "
        "WHERE A.category = 10 AND P.state IN ('OR', 'ID', 'CA')",
    ),
    4: Expectation(
        about="The average price of the winning bids of each category. A winning bid is the highest of an "
        "auction between its opening and its end, both in; of equal ones the earliest. Compared: the last "
        "row of a category.",
        sql="SELECT category, avg(price) AS average FROM winning GROUP BY category",
        key=("category",),
    ),
    5: Expectation(
        about="The auctions with the most bids in the last 10 s of event time, every 2 s; all of equal ones.",
        sql="SELECT auction, num, window_start, window_end FROM hop "
        "QUALIFY num = max(num) OVER (PARTITION BY window_end)",
        closes="window_end",
    ),
    6: Expectation(
        about="The average winning bid of each seller's last 10 auctions, by their end, that have one. "
        "Compared: the last row of a seller.",
        sql="SELECT seller, avg(price) AS average FROM "
        "(SELECT seller, price FROM winning "
        "QUALIFY row_number() OVER (PARTITION BY seller ORDER BY expires DESC, id DESC) <= 10) "
        "GROUP BY seller",
        key=("seller",),
    ),
    7: Expectation(
        about="The bids of the highest price in each window of 10 s of event time; all of equal ones.",
        sql="SELECT auction, bidder, price, date_time, extra FROM bid QUALIFY price = max(price) OVER "
        "(PARTITION BY time_bucket(INTERVAL 10 SECOND, date_time))",
        closes="time_bucket(INTERVAL 10 SECOND, date_time) + INTERVAL 10 SECOND",
    ),
    8: Expectation(
        about="Who registered and opened an auction in the same window of 10 s of event time.",
        sql="SELECT DISTINCT P.id, P.name, time_bucket(INTERVAL 10 SECOND, P.date_time) AS window_start "
        "FROM person P JOIN auction A ON P.id = A.seller AND time_bucket(INTERVAL 10 SECOND, P.date_time) "
        "= time_bucket(INTERVAL 10 SECOND, A.date_time)",
        closes="window_start + INTERVAL 10 SECOND",
    ),
    9: Expectation(
        about="Each auction with its winning bid (see 4). Compared: the last row of an auction.",
        sql="SELECT id, item_name, initial_bid, reserve, date_time, expires, seller, category, bidder, "
        "price, bid_date_time FROM winning",
        key=("id",),
    ),
    11: Expectation(
        about="How many bids a user makes in each session; one ends after 10 s of event time without a bid.",
        sql="SELECT bidder, count(*) AS bids, min(date_time) AS window_start, "
        "max(date_time) + INTERVAL 10 SECOND AS window_end FROM ("
        "SELECT bidder, date_time, sum(begins) OVER in_order AS session FROM ("
        "SELECT bidder, date_time, number, CASE WHEN date_time - lag(date_time) OVER in_order "
        "< INTERVAL 10 SECOND THEN 0 ELSE 1 END AS begins "
        "FROM bid WINDOW in_order AS (PARTITION BY bidder ORDER BY date_time, number)) "
        "WINDOW in_order AS (PARTITION BY bidder ORDER BY date_time, number)) GROUP BY bidder, session",
        closes="window_end",
    ),
    12: Expectation(
        about="How many bids a user makes in each window of 10 s of processing time. Which one a bid is in "
        "follows from when it was read; compared is what does not: the bids of a user over all windows. "
        "Windows begin at multiples of 10 s. Of a user and window the last row counts.",
        sql="SELECT bidder, count(*) AS bids, true AS aligned FROM bid GROUP BY bidder",
        key=("bidder", "window_start"),
        emitted="bidder, CAST(sum(bids) AS bigint) AS bids, bool_and(epoch_us(window_start) % 10000000 = 0 "
        "AND window_end = window_start + INTERVAL 10 SECOND) AS aligned",
    ),
    13: Expectation(
        about="Every bid with the value of its auction, modulo 10,000, in a table that does not change.",
        sql=f"SELECT auction, bidder, price, date_time, "
        f"'side-' || (auction % {SIDE_ROWS} * {SIDE_FACTOR} % {SIDE_ROWS}) AS value FROM bid",
    ),
    14: Expectation(
        about="The bids of 1 to 50 million euros (see 1), with the time of day in words (hours 8 to 18, 20 "
        "to 6, others; UTC), and how often `extra` has the letter c.",
        sql="SELECT auction, bidder, CAST(0.908 * price AS decimal(23, 3)) AS price, "
        "CASE WHEN hour(date_time) BETWEEN 8 AND 18 THEN 'dayTime' "
        "WHEN hour(date_time) <= 6 OR hour(date_time) >= 20 THEN 'nightTime' ELSE 'otherTime' END "
        "AS time_type, date_time, extra, length(extra) - length(replace(extra, 'c', '')) AS c_counts "
        "FROM bid WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000",
    ),
    15: Expectation(
        about="Of each day (UTC) the bids, distinct bidders and distinct auctions: all of them, and those of "
        "low (below 10,000), middle and high (from 1,000,000) prices. Compared: the last row of a day.",
        sql=f"SELECT strftime(date_time, '%Y-%m-%d') AS day, {_ranked('count(*)', 'bids')}, "
        f"{_ranked('count(DISTINCT bidder)', 'bidders')}, "
        f"{_ranked('count(DISTINCT auction)', 'auctions')} FROM bid GROUP BY day",
        key=("day",),
    ),
    17: Expectation(
        about="Of each auction and day (UTC) the bids, all and by price (see 15), and the least, greatest, "
        "average and summed price. Compared: the last row of an auction and day.",
        sql=f"SELECT auction, strftime(date_time, '%Y-%m-%d') AS day, {_ranked('count(*)', 'bids')}, "
        "min(price) AS min_price, max(price) AS max_price, avg(price) AS avg_price, "
        "CAST(sum(price) AS bigint) AS sum_price FROM bid GROUP BY auction, day",
        key=("auction", "day"),
    ),
    18: Expectation(
        about="The last bid, by event time, of each bidder on each auction. Compared: the last row of these.",
        sql="SELECT bidder, auction, price, channel, url, date_time, extra FROM bid "
        "QUALIFY row_number() OVER (PARTITION BY bidder, auction ORDER BY date_time DESC, number DESC) = 1",
        key=("bidder", "auction"),
    ),
    19: Expectation(
        about="The ten highest bids on each auction with their ranks; of equal ones the earliest first. "
        "Compared: the last row of an auction and rank.",
        sql="SELECT auction, row_number() OVER (PARTITION BY auction ORDER BY price DESC, date_time, number) "
        "AS rank, bidder, price, date_time, extra FROM bid QUALIFY rank <= 10",
        key=("auction", "rank"),
    ),
    20: Expectation(
        about="Every bid on an auction of category 10, with the auction, whichever came first.",
        sql="SELECT B.auction, B.bidder, B.price, B.channel, B.url, B.date_time AS bid_date_time, "
        "A.item_name, A.initial_bid, A.reserve, A.date_time, A.expires, A.seller "
        "FROM bid B JOIN auction A ON B.auction = A.id WHERE A.category = 10",
    ),
    22: Expectation(
        about="Every bid with the three directories of its URL.",
        sql="SELECT auction, bidder, price, channel, split_part(url, '/', 4) AS dir1, "
        "split_part(url, '/', 5) AS dir2, split_part(url, '/', 6) AS dir3 FROM bid",
    ),
}


def differences(
    query: int, events: pa.Table, emitted: pa.Table, closed_before: datetime | None = None
) -> list[str]:
    """What is wrong with the rows that were emitted, in this order, for the events; nothing if all is right.

    `closed_before`: windows that end later are still open, so their rows may be missing. Not given: none are.
    """
    expectation = EXPECTATIONS[query]
    with duckdb.connect() as database:
        database.register("events", without_zones(events))
        database.register(
            "emitted", without_zones(emitted.append_column("place", pa.array(np.arange(len(emitted)))))
        )
        database.execute(_VIEWS)
        columns = database.sql(expectation.sql).columns
        missing_columns = set(() if expectation.emitted else columns) - set(emitted.column_names)
        if missing_columns:
            return [f"there is no column {name}" for name in sorted(missing_columns)]
        right, is_there = f"({expectation.sql})", f"({_emitted(expectation, columns)})"
        due = right
        if expectation.closes and closed_before is not None:
            due = f"(SELECT * FROM {right} WHERE {expectation.closes} <= TIMESTAMP '{closed_before}')"
        surplus = database.sql(f"FROM {is_there} EXCEPT ALL FROM {right}").fetchall()
        missing = database.sql(f"FROM {due} EXCEPT ALL FROM {is_there}").fetchall()
    return [f"surplus: {row}" for row in surplus] + [f"missing: {row}" for row in missing]


def expected_rows(query: int, events: pa.Table) -> pa.Table:
    """The right answer."""
    with duckdb.connect() as database:
        database.register("events", without_zones(events))
        database.execute(_VIEWS)
        return database.sql(EXPECTATIONS[query].sql).to_arrow_table()


def without_zones(rows: pa.Table) -> pa.Table:
    """The same rows with times as plain timestamps, in UTC: what does not depend on any time zone set."""
    return rows.cast(pa.schema([pa.field(field.name, _plain(field.type)) for field in rows.schema]))


def _emitted(expectation: Expectation, columns: list[str]) -> str:
    last = "emitted"
    if expectation.key:
        by = ", ".join(expectation.key)
        last = f"(FROM emitted QUALIFY row_number() OVER (PARTITION BY {by} ORDER BY place DESC) = 1)"
    if expectation.emitted:
        return f"SELECT {expectation.emitted} FROM {last} GROUP BY bidder"
    return f"SELECT {', '.join(columns)} FROM {last}"


def _plain(type: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(type):
        return pa.struct([pa.field(field.name, _plain(field.type)) for field in type])
    return pa.timestamp("us") if pa.types.is_timestamp(type) else type
