"""Judges the job in three parts (see parts_app) by what it left behind: its sinks and the state of its parts.

What is expected is computed from the formulas of the input alone: what a run without faults gives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pyarrow.parquet as pq

from holdfast.chaos.independent_reader import operator_state
from holdfast.checkpoint.chain.history import History
from holdfast.storage.contract import Storage
from holdfast.storage.urls import open_storage
from tests.chaos.apps import Place, Shape
from tests.chaos.parts_app import RENUMBERED

PARTS = ("main", "numbered", "joined")


def storage_of(place: Place, part: str) -> Storage:
    """The checkpoint of one part."""
    return open_storage(str(place.checkpoint / "parts" / part))


def events_read(place: Place) -> int:
    """How many events the first part has committed, of a source that counts them."""
    position = History(storage_of(place, "main")).load().positions.get("events") or [0]
    return int(position[0])


def check(place: Place, shape: Shape, events: int, story: str) -> Mapping[str, int]:
    """Every sink shows each of the first `events` events once, and the state of every part is of all of them.
    Gives the number of rows of each code of `number`, old and new."""
    keys = Counter(shape.key_of(event) for event in range(events))
    assert Counter(rows(place, "events", "event")) == Counter((event,) for event in range(events)), story
    numbers = rows(place, "numbers", "key", "n")
    expected = Counter((key, n) for key, count in keys.items() for n in range(1, count + 1))
    assert Counter((key, n % RENUMBERED) for key, n in numbers) == expected, story
    met = Counter(rows(place, "met", "key", "way", "n"))
    assert met == Counter({(key, way, n): 1 for key, n in expected for way in ("short", "long")}), story
    totals = Counter[int]()
    for key, n in numbers:
        totals[key] += n
    shown = Counter[int]()
    for key, total in rows(place, "met", "key", "total"):
        shown[key] = max(shown[key], total)
    assert shown == totals, story
    assert state(place, "numbered", "number") == {key: {"n": count} for key, count in keys.items()}, story
    assert state(place, "joined", "meet") == {
        key: {"short": count, "long": count, "total": totals[key]} for key, count in keys.items()
    }, story
    return _codes(numbers, story)


def _codes(numbers: list[tuple[Any, ...]], story: str) -> Mapping[str, int]:
    """No row of a key is of old code after one of new code."""
    old, new = Counter[int](), dict[int, int]()
    for key, n in numbers:
        if n < RENUMBERED:
            old[key] = max(old[key], n)
        else:
            new[key] = min(new.get(key, n), n)
    assert all(old[key] < n - RENUMBERED for key, n in new.items()), story
    count = sum(n < RENUMBERED for _, n in numbers)
    return {"old": count, "new": len(numbers) - count}


def rows(place: Place, sink: str, *columns: str) -> list[tuple[Any, ...]]:
    """What a sink shows."""
    table = pq.read_table(place.sink(sink), columns=list(columns))
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def state(place: Place, part: str, uid: str) -> dict[int, dict[str, Any]]:
    """Of an operator of a part at its newest commit, by key."""
    storage = storage_of(place, part)
    found = operator_state(storage, History(storage).load(), uid)
    return {key[0]: values for key, values in found.items()}
