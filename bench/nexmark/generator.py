"""The events of an online auction, after the Nexmark benchmark: people who register, auctions that they open,
bids on these. Each event is a pure function of its number and the settings.

Of 50 events in a row the first registers a person, the next 3 open auctions and 46 are bids. Half of the bids
go to the hot auction, the newest with a number divisible by 100; three quarters of the auctions and of the
bids come from a hot seller and a hot bidder. The others are spread evenly over the newest people and
auctions and a few (`LEAD`) that are still to come, so that a bid may arrive before its auction. Prices are
spread evenly on a logarithmic scale. The texts are short, and only a bid has an `extra`.

Always true: the time of event n is at most `n * interval_us` after the start, and at most `disorder_us`
before that moment, so no event is more than `disorder_us` behind the newest before it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.workload import mixed

PERSON, AUCTION, BID = 0, 1, 2
PERSONS, AUCTIONS, ROUND = 1, 3, 50
"""Of the events of a round so many are persons and auctions, in this order; the rest are bids."""

FIRST_ID = 1_000
FIRST_CATEGORY, CATEGORIES = 10, 5
ACTIVE_PEOPLE, IN_FLIGHT_AUCTIONS = 1_000, 100
LEAD = 10
HOT_EVERY = 100
COLD_AUCTION_IN, COLD_SELLER_IN, COLD_BIDDER_IN, COLD_CHANNEL_IN = 2, 4, 4, 2
"""One in so many is not of the hot ones."""

STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
CITIES = ("Boise", "Portland", "Bend", "Redding", "Yakima", "Tucson", "Cheyenne", "Eureka")
FIRST_NAMES = ("Ada", "Ben", "Cleo", "Dov", "Eve", "Finn", "Gus", "Hana", "Ivo", "Jun", "Kaya")
LAST_NAMES = ("Abel", "Brook", "Cole", "Dunn", "East", "Frost", "Gray", "Hale", "Irons")
HOT_CHANNELS = ("Apple", "Baidu", "Facebook", "Google")
COLD_CHANNELS = 10_000
TEXTS = 4_096
PRICE_LEVELS = 1 << 16
PRICE_LOWEST, PRICE_DECADES = 100, 6

SCHEMA = (
    "number long, kind int, date_time timestamp, "
    "person struct<id: long, name: string, email: string, credit_card: string, city: string, state: string>, "
    "auction struct<id: long, item_name: string, description: string, initial_bid: long, reserve: long, "
    "expires: timestamp, seller: long, category: long>, "
    "bid struct<auction: long, bidder: long, price: long, channel: string, url: string, extra: string>"
)
"""One of the three structs is there, as `kind` says; the others are null."""

TIME = pa.timestamp("us", tz="UTC")
Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Nexmark:
    """The settings: they and a number make an event."""

    seed: int = 0
    start_us: int = 1_436_918_400_000_000
    """Event time of event 0 in microseconds since 1970: midnight before 15 July 2015, UTC, if not given."""
    interval_us: int = 100
    """From an event to the next; 100 means 10,000 events per second of event time."""
    disorder_us: int = 2_000_000

    def table(self, first: int, end: int) -> pa.Table:
        """Events `first` (in) to `end` (out)."""
        numbers = np.arange(first, end, dtype=np.int64)
        place = numbers % ROUND
        kinds = np.full(len(numbers), BID, dtype=np.int32)
        kinds[place < PERSONS + AUCTIONS] = AUCTION
        kinds[place < PERSONS] = PERSON
        times = self._times(numbers)
        people, openings = kinds == PERSON, kinds == AUCTION
        return pa.table(
            {
                "number": numbers,
                "kind": kinds,
                "date_time": pa.array(times, pa.int64()).cast(TIME),
                "person": _spread(self._persons(numbers[people]), people),
                "auction": _spread(self._auctions(numbers[openings], times[openings]), openings),
                "bid": self._bids(numbers, kinds != BID),
            }
        )

    def _times(self, numbers: Longs) -> Longs:
        latest = self.start_us + numbers * self.interval_us
        return latest - self._below(numbers, "time", self.disorder_us + 1)

    def _persons(self, numbers: Longs) -> pa.StructArray:
        first = _taken(FIRST_NAMES, self._below(numbers, "first name", len(FIRST_NAMES)))
        last = _taken(LAST_NAMES, self._below(numbers, "last name", len(LAST_NAMES)))
        id = FIRST_ID + numbers // ROUND
        card = pa.array(10**15 + self._below(numbers, "card", 9 * 10**8) * 10**6).cast(pa.string())
        columns = {
            "id": pa.array(id),
            "name": pc.binary_join_element_wise(first, last, " "),
            "email": pc.binary_join_element_wise(last, pa.array(id).cast(pa.string()), "@"),
            "credit_card": card,
            "city": _taken(CITIES, self._below(numbers, "city", len(CITIES))),
            "state": _taken(STATES, self._below(numbers, "state", len(STATES))),
        }
        return _struct(columns)

    def _auctions(self, numbers: Longs, times: Longs) -> pa.StructArray:
        opened = self._price(numbers, "initial bid")
        # About as long as it takes until so many other auctions are open, on average.
        open_us = IN_FLIGHT_AUCTIONS * ROUND // AUCTIONS * self.interval_us
        expires = times + 1 + self._below(numbers, "expires", 2 * open_us)
        columns = {
            "id": pa.array(FIRST_ID + _newest_auction(numbers)),
            "item_name": _taken(_texts(), self._below(numbers, "item", TEXTS)),
            "description": _taken(_texts(), self._below(numbers, "description", TEXTS)),
            "initial_bid": pa.array(opened),
            "reserve": pa.array(opened + self._price(numbers, "reserve")),
            "expires": pa.array(expires, pa.int64()).cast(TIME),
            "seller": pa.array(self._person(numbers, "seller", COLD_SELLER_IN, 0)),
            "category": pa.array(FIRST_CATEGORY + self._below(numbers, "category", CATEGORIES)),
        }
        return _struct(columns)

    def _bids(self, numbers: Longs, absent: npt.NDArray[np.bool_]) -> pa.StructArray:
        """Made for all numbers, and hidden where the event is no bid: most are."""
        newest = np.maximum(_newest_auction(numbers), 0)
        oldest = np.maximum(newest - IN_FLIGHT_AUCTIONS, 0)
        cold = oldest + self._below(numbers, "auction", newest - oldest + 1 + LEAD)
        is_cold = self._below(numbers, "hot auction", COLD_AUCTION_IN) == 0
        auction = FIRST_ID + np.where(is_cold, cold, newest // HOT_EVERY * HOT_EVERY)
        channels, urls = _channels()
        channel = len(HOT_CHANNELS) + self._below(numbers, "channel", COLD_CHANNELS)
        hot = self._below(numbers, "hot channel", COLD_CHANNEL_IN * len(HOT_CHANNELS))
        channel = pa.array(np.where(hot < len(HOT_CHANNELS), hot, channel))
        columns = {
            "auction": pa.array(auction),
            "bidder": pa.array(self._person(numbers, "bidder", COLD_BIDDER_IN, 1)),
            "price": pa.array(self._price(numbers, "price")),
            "channel": channels.take(channel),
            "url": urls.take(channel),
            "extra": _taken(_texts(), self._below(numbers, "extra", TEXTS)),
        }
        return _struct(columns, pa.array(absent))

    def _person(self, numbers: Longs, what: str, cold_in: int, hot: int) -> Longs:
        """Ids of people; of every `HOT_EVERY` the one with the number `hot` is a hot one for its time."""
        newest = numbers // ROUND
        oldest = np.maximum(newest - ACTIVE_PEOPLE, 0)
        cold = oldest + self._below(numbers, what, newest - oldest + 1 + LEAD)
        is_cold = self._below(numbers, f"hot {what}", cold_in) == 0
        return FIRST_ID + np.where(is_cold, cold, newest // HOT_EVERY * HOT_EVERY + hot)

    def _price(self, numbers: Longs, what: str) -> Longs:
        return _prices()[self._below(numbers, what, PRICE_LEVELS)]

    def _below(self, numbers: Longs, what: str, limit: int | Longs) -> Longs:
        """A number from 0 to below `limit` for each event, by chance; independent for each `what`."""
        # Two words of 8 bytes: a longer name fails here.
        salt = np.frombuffer(what.encode().ljust(16, b"\0"), dtype=np.uint64)
        # An array of one: it wraps around in silence, which a scalar does not.
        stream = mixed(mixed(salt[:1] + np.uint64(self.seed)) ^ salt[1:])
        drawn = mixed(numbers.astype(np.uint64) + stream) >> np.uint64(32)
        return (drawn * np.asarray(limit, dtype=np.uint64) >> np.uint64(32)).astype(np.int64)


def tables(settings: Nexmark, events: int, per_table: int) -> Iterator[pa.Table]:
    """The first events, in order, so many at a time."""
    for first in range(0, events, per_table):
        yield settings.table(first, min(events, first + per_table))


def write_parquet(directory: Path, settings: Nexmark, events: int, per_file: int) -> list[Path]:
    """The first events as Parquet files, in an order that file sources keep (name and time of change)."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, table in enumerate(tables(settings, events, per_file)):
        path = directory / f"events-{number:06d}.parquet"
        # Two row groups: a reader with two cores can use both on one file.
        pq.write_table(table, path, row_group_size=max(1, (table.num_rows + 1) // 2))
        paths.append(_in_order(path, number))
    return paths


def write_json(directory: Path, settings: Nexmark, events: int, per_file: int) -> list[Path]:
    """The first events as JSON lines; times are text in UTC."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, table in enumerate(tables(settings, events, per_file)):
        path = directory / f"events-{number:06d}.json"
        lines = (json.dumps(row, default=lambda time: time.isoformat()) for row in table.to_pylist())
        path.write_text("".join(f"{line}\n" for line in lines))
        paths.append(_in_order(path, number))
    return paths


def _in_order(path: Path, number: int) -> Path:
    os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
    return path


def _newest_auction(numbers: Longs) -> Longs:
    """The number of the newest auction when each event happens, itself included; -1 before the first."""
    opened = np.clip(numbers % ROUND - PERSONS + 1, 0, AUCTIONS)
    return numbers // ROUND * AUCTIONS + opened - 1


def _spread(values: pa.StructArray, where: npt.NDArray[np.bool_]) -> pa.StructArray:
    """The values in order at the rows where the mask is true, nulls elsewhere."""
    return values.take(pa.array(np.cumsum(where) - 1, mask=~where))


def _struct(columns: dict[str, pa.Array], absent: pa.Array | None = None) -> pa.StructArray:
    return pa.StructArray.from_arrays(list(columns.values()), names=list(columns), mask=absent)


def _taken(texts: tuple[str, ...] | pa.Array, index: Longs) -> pa.Array:
    return pa.array(texts, pa.string()).take(pa.array(index))


@cache
def _prices() -> Longs:
    # Python's own arithmetic: numpy's powers may differ in the last bit between machines.
    prices = [
        round(PRICE_LOWEST * 10 ** (PRICE_DECADES * level / PRICE_LEVELS)) for level in range(PRICE_LEVELS)
    ]
    return np.array(prices, dtype=np.int64)


@cache
def _texts() -> pa.Array:
    return pa.array([_word(number, 8) for number in range(TEXTS)])


@cache
def _channels() -> tuple[pa.Array, pa.Array]:
    """The name and the URL of each channel, the hot ones first."""
    names = [*HOT_CHANNELS, *(f"channel-{number}" for number in range(COLD_CHANNELS))]
    urls = []
    for number, name in enumerate(names):
        path = "/".join(_word(TEXTS + 3 * number + part, 5) for part in range(3))
        urls.append(f"https://www.example.com/{path}/item.htm?query=1&channel={name}")
    return pa.array(names), pa.array(urls)


def _word(number: int, letters: int) -> str:
    drawn = int(mixed(np.array([number], dtype=np.uint64))[0])
    return "".join(chr(ord("a") + (drawn >> 5 * place) % 26) for place in range(letters))
