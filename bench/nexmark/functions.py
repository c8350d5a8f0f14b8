"""The stateful functions of the Nexmark queries, most of them over whole columns.

A key's rows come in any order within an epoch and events are out of order across epochs, so nothing here
goes by which row came first: what is kept is decided by event time and event number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

import holdfast as hf

TOP = 10
WINDOW_MS = 10_000
OPENED = (
    "struct<item_name: string, initial_bid: long, reserve: long, date_time: timestamp, expires: timestamp, "
    "seller: long, category: long>"
)
Longs = npt.NDArray[np.int64]


class SellerOfAuction(hf.KeyedFunction):
    """Query 3: a person once, any number of auctions; those that come before their seller wait."""

    output = "name string, city string, state string, id long"
    person = hf.ValueState("struct<name: string, city: string, state: string>")
    waiting = hf.ListState("long")

    def process(self, row: Any, ctx: hf.Context) -> Iterator[tuple[Any, ...]]:
        if row.person is not None:
            self.person.value = {
                "name": row.person.name, "city": row.person.city, "state": row.person.state,
            }  # fmt: skip
            for auction in self.waiting:
                yield row.person.name, row.person.city, row.person.state, auction
            self.waiting.clear()
        elif (person := self.person.value) is not None:
            yield person.name, person.city, person.state, row.auction
        else:
            self.waiting.append(row.auction)


class LastTenAverage(hf.KeyedFunction):
    """Query 6: the average of a seller's last auctions, by their end; a winning bid may still be outbid."""

    output = "seller long, average double"
    last = hf.ValueState("array<struct<expires: timestamp, id: long, price: long>>")

    def process(self, row: Any, ctx: hf.Context) -> Iterable[tuple[Any, ...]]:
        known = {(each.expires, each.id): each.price for each in self.last.value or ()}
        known[row.expires, row.id] = row.price
        kept = sorted(known)[-TOP:]
        self.last.value = [{"expires": at, "id": id, "price": known[at, id]} for at, id in kept]
        yield row.seller, sum(known[each] for each in kept) / len(kept)


class BidsOnAuctions(hf.BatchFunction):
    """What queries 4, 6, 9 and 20 share. Rows are auctions (`expires` is there) and bids, by auction; a bid
    that comes before its auction waits for it.

    A subclass declares `opened`, what it remembers of an auction, and `waiting`, what it needs of bids.
    """

    opened: Any
    waiting: Any

    def ready_bids(self, rows: pa.Table, ctx: hf.BatchContext) -> tuple[Longs, pa.StructArray]:
        """The bids whose auction is known by now: which key each has, and the bids."""
        index = ctx.key_index.astype(np.int64)
        is_auction = rows["expires"].is_valid().to_numpy()
        opened = self.opened.column
        if is_auction.any():
            auctions = _structs(rows.filter(pa.array(is_auction)), opened.type)
            opened = self.opened.column = _replaced(opened, index[is_auction], auctions)
        waited_keys, waited = _flattened(self.waiting.column)
        bids = _structs(rows.filter(pa.array(~is_auction)), waited.type)
        keys = np.concatenate([waited_keys, index[~is_auction]])
        bids = pa.concat_arrays([waited, bids])
        known = opened.is_valid().to_numpy(zero_copy_only=False)[keys]
        if len(waited) or not known.all():
            self.waiting.column = lists = _listed(keys[~known], _where(bids, ~known), len(opened))
            self.waiting.clear(pc.equal(lists.value_lengths(), 0))
        return keys[known], _where(bids, known)


class WinningBids(BidsOnAuctions):
    """Queries 4, 6 and 9: the highest bid of each auction between its opening and its end, both in; emitted
    again when it is outbid, with the price that it had before. Of equal bids the earliest wins."""

    output = (
        "id long, item_name string, initial_bid long, reserve long, date_time timestamp, expires timestamp, "
        "seller long, category long, bidder long, price long, bid_date_time timestamp, former long"
    )
    opened = hf.ValueState(OPENED)
    waiting = hf.ValueState("array<struct<number: long, date_time: timestamp, bidder: long, price: long>>")
    best = hf.ValueState("struct<number: long, date_time: timestamp, bidder: long, price: long>")

    def process(self, rows: pa.Table, ctx: hf.BatchContext) -> pa.Table:
        keys, bids = self.ready_bids(rows, ctx)
        opened, before = self.opened.column, self.best.column
        at = _longs(bids, "date_time")
        in_time = (at >= _longs(opened, "date_time")[keys]) & (at <= _longs(opened, "expires")[keys])
        held = np.flatnonzero(before.is_valid().to_numpy(zero_copy_only=False))
        bids = pa.concat_arrays([before.take(pa.array(held)), _where(bids, in_time)])
        keys = np.concatenate([held, keys[in_time]])
        order = np.lexsort((_longs(bids, "number"), _longs(bids, "date_time"), -_longs(bids, "price"), keys))
        first = order[_begins(keys[order])]
        new = first[first >= len(held)]
        won, changed = bids.take(pa.array(new)), keys[new]
        if len(won):
            self.best.column = _replaced(before, changed, won)
        former = pc.struct_field(before, "price").take(pa.array(changed))
        auctions = opened.take(pa.array(changed))
        columns = {"id": ctx.keys["id"].take(pa.array(changed)), **_columns(auctions)}
        columns |= {"bidder": pc.struct_field(won, "bidder"), "price": pc.struct_field(won, "price")}
        columns |= {"bid_date_time": pc.struct_field(won, "date_time"), "former": former}
        return pa.table(columns)


class BidsWithAuction(BidsOnAuctions):
    """Query 20: each bid with its auction, if that is of category 10."""

    output = (
        "auction long, bidder long, price long, channel string, url string, bid_date_time timestamp, "
        "item_name string, initial_bid long, reserve long, date_time timestamp, expires timestamp, "
        "seller long"
    )
    opened = hf.ValueState(OPENED)
    waiting = hf.ValueState(
        "array<struct<bidder: long, price: long, channel: string, url: string, date_time: timestamp>>"
    )

    def process(self, rows: pa.Table, ctx: hf.BatchContext) -> pa.Table:
        keys, bids = self.ready_bids(rows, ctx)
        wanted = _longs(self.opened.column, "category")[keys] == 10
        keys, bids = keys[wanted], _columns(_where(bids, wanted))
        auctions = _columns(self.opened.column.take(pa.array(keys)))
        del auctions["category"]
        bids["bid_date_time"] = bids.pop("date_time")
        return pa.table({"auction": ctx.keys["id"].take(pa.array(keys)), **bids, **auctions})


class FirstSeen(hf.BatchFunction):
    """Query 15: rows are a day, one of its bidders or auctions, and bits for the price levels of its bids;
    emits which of the bits are new."""

    output = "day string, level0 long, level1 long, level2 long, level3 long"
    seen = hf.ValueState("long", default=0)

    def process(self, rows: pa.Table, ctx: hf.BatchContext) -> pa.Table:
        before = self.seen.column.to_numpy()
        after = before.copy()
        np.bitwise_or.at(after, ctx.key_index, rows["levels"].to_numpy())
        self.seen.column = after
        new = after & ~before
        levels = {f"level{level}": new >> level & 1 for level in range(4)}
        return pa.table({"day": ctx.keys["day"], **levels}).filter(pa.array(new != 0))


class LastBid(hf.BatchFunction):
    """Query 18: the last bid of each bidder on each auction by event time; emitted when there is a later
    one."""

    output = (
        "bidder long, auction long, price long, channel string, url string, date_time timestamp, extra string"
    )
    last = hf.ValueState("struct<date_time: timestamp, number: long>")

    def process(self, rows: pa.Table, ctx: hf.BatchContext) -> pa.Table:
        order = np.lexsort((rows["number"].to_numpy(), _micros(rows["date_time"]), ctx.key_index))
        newest = order[_ends(ctx.key_index[order])]
        keys = ctx.key_index[newest]
        rows, before = rows.take(pa.array(newest)), self.last.column.take(pa.array(keys))
        at, held_at = _micros(rows["date_time"]), _longs(before, "date_time")
        later = rows["number"].to_numpy() > _longs(before, "number")
        is_new = before.is_null().to_numpy(zero_copy_only=False)
        is_new |= (at > held_at) | ((at == held_at) & later)
        rows, keys = rows.filter(pa.array(is_new)), keys[is_new]
        self.last.column = _replaced(self.last.column, keys, _structs(rows, self.last.column.type))
        return rows.drop_columns(["number"])


class TopTen(hf.BatchFunction):
    """Query 19: the ten highest bids on each auction; a rank is emitted again when another bid takes it."""

    output = "auction long, rank long, bidder long, price long, date_time timestamp, extra string"
    top = hf.ValueState(
        "array<struct<number: long, bidder: long, price: long, date_time: timestamp, extra: string>>"
    )

    def process(self, rows: pa.Table, ctx: hf.BatchContext) -> pa.Table:
        held_keys, held = _flattened(self.top.column)
        bids = pa.concat_arrays([held, _structs(rows, held.type)])
        keys = np.concatenate([held_keys, ctx.key_index])
        order = np.lexsort((_longs(bids, "number"), _longs(bids, "date_time"), -_longs(bids, "price"), keys))
        kept = order[_rank(keys[order]) < TOP]
        keys, ranks = keys[kept], _rank(keys[kept])
        # What is held was in the order of ranks: a bid is new at its rank if that one held another.
        former_ranks = np.concatenate([_rank(held_keys), np.full(len(rows), -1)])[kept]
        bids = bids.take(pa.array(kept))
        self.top.column = _listed(keys, bids, len(ctx.keys))
        changed = pa.array(former_ranks != ranks)
        columns = {"auction": ctx.keys["auction"].take(pa.array(keys)), "rank": pa.array(ranks + 1)}
        return pa.table({**columns, **_columns(bids)}).drop_columns(["number"]).filter(changed)


class BidsPerWindow(hf.BatchFunction):
    """Query 12: how many bids a bidder made in the current window of processing time, the plan's clock."""

    output = "bidder long, bids long, window_start timestamp, window_end timestamp"
    window = hf.ValueState("long", default=-1)
    bids = hf.ValueState("long", default=0)

    def process(self, rows: pa.Table, ctx: hf.BatchContext) -> pa.Table:
        window = ctx.timestamp // WINDOW_MS
        held = np.where(self.window.column.to_numpy() == window, self.bids.column.to_numpy(), 0)
        bids = held + np.bincount(ctx.key_index, minlength=len(ctx.keys))
        self.bids.column, self.window.column = bids, np.full(len(bids), window)
        start = pa.array(np.full(len(bids), window * WINDOW_MS)).cast(pa.timestamp("ms", tz="UTC"))
        end = pa.array(np.full(len(bids), (window + 1) * WINDOW_MS)).cast(start.type)
        return pa.table(
            {"bidder": ctx.keys["bidder"], "bids": bids, "window_start": start, "window_end": end}
        )


# Columns of structs and of lists of structs.


def _structs(rows: pa.Table, type: pa.StructType) -> pa.StructArray:
    """Some columns of a table, as the fields of structs."""
    columns = [_whole(rows[field.name]).cast(field.type) for field in type]
    return pa.StructArray.from_arrays(columns, fields=list(type))


def _columns(structs: pa.StructArray) -> dict[str, pa.Array]:
    return {field.name: pc.struct_field(structs, field.name) for field in structs.type}


def _longs(structs: pa.StructArray, name: str) -> Longs:
    """A field as integers, times in microseconds; 0 where there is none."""
    return _micros(pc.struct_field(structs, name))


def _micros(column: pa.Array | pa.ChunkedArray) -> Longs:
    longs: Longs = pc.fill_null(_whole(column).cast(pa.int64()), 0).to_numpy()
    return longs


def _whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _where(values: pa.Array, mask: npt.NDArray[np.bool_]) -> pa.Array:
    return values if mask.all() else values.filter(pa.array(mask))


def _replaced(values: pa.Array, at: npt.NDArray[Any], others: pa.Array) -> pa.Array:
    """The values with others at some places."""
    index = np.arange(len(values))
    index[at] = len(values) + np.arange(len(others))
    return pa.concat_arrays([values, others]).take(pa.array(index))


def _flattened(lists: pa.ListArray) -> tuple[Longs, pa.Array]:
    """The items of all lists, and the number of the list that each is of."""
    return pc.list_parent_indices(lists).to_numpy(), pc.list_flatten(lists)


def _listed(keys: Longs, items: pa.Array, lists: int) -> pa.ListArray:
    """So many lists of the items with these numbers, in their order."""
    order = np.argsort(keys, kind="stable")
    offsets = np.searchsorted(keys[order], np.arange(lists + 1)).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), items.take(pa.array(order)))


def _begins(sorted_keys: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Which rows are the first of their key."""
    return np.concatenate([np.ones(min(1, len(sorted_keys)), np.bool_), sorted_keys[1:] != sorted_keys[:-1]])


def _ends(sorted_keys: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    return _begins(sorted_keys[::-1])[::-1]


def _rank(sorted_keys: npt.NDArray[Any]) -> Longs:
    """The place of each row among those of its key, from 0."""
    place = np.arange(len(sorted_keys))
    begins = np.where(_begins(sorted_keys), place, 0)
    rank: Longs = place - np.maximum.accumulate(begins) if len(place) else place
    return rank
