"""Judges the job in three parts (see parts_app) by what it left behind: its sinks and the state of its parts.

What is expected is computed from the formulas of the input alone: what a run without faults gives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq

from holdfast.chaos.independent_reader import operator_state
from holdfast.checkpoint.chain.history import History
from holdfast.storage.contract import Storage
from holdfast.storage.urls import open_storage
from tests.chaos.apps import Place, Shape
from tests.chaos.parts_app import RENUMBERED

PARTS = ("main", "numbered", "joined")

Rows = list[tuple[Any, ...]]
State = Mapping[int, Mapping[str, int]]
"""Key -> state name -> value."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What the job left behind: the rows of its sinks, and the state of its operators."""

    events: Rows
    """event"""
    numbers: Rows
    """key, n"""
    met: Rows
    """key, way, n, total"""
    number: State
    meet: State

    @property
    def renumbered(self) -> int:
        """How many rows are of the newer code of `number`."""
        return sum(n >= RENUMBERED for _, n in self.numbers)


def storage_of(place: Place, part: str) -> Storage:
    """The checkpoint of one part."""
    return open_storage(str(place.checkpoint / "parts" / part))


def events_read(place: Place) -> int:
    """How many events the first part has committed, of a source that counts them."""
    position = History(storage_of(place, "main")).load().positions.get("events") or [0]
    return int(position[0])


def gather(place: Place) -> Evidence:
    return Evidence(
        events=rows_of(place, "events", "event"),
        numbers=rows_of(place, "numbers", "key", "n"),
        met=rows_of(place, "met", "key", "way", "n", "total"),
        number=state_of(place, "numbered", "number"),
        meet=state_of(place, "joined", "meet"),
    )


def judge_alone(place: Place, shape: Shape) -> list[str]:
    """What is wrong with what part `numbered` left behind, where it is alone and reads the events itself."""
    position = History(storage_of(place, "numbered")).load().positions.get("events") or [0]
    keys = Counter(shape.key_of(event) for event in range(int(position[0])))
    numbered = Counter((key, n) for key, count in keys.items() for n in range(1, count + 1))
    shown = Counter((key, n % RENUMBERED) for key, n in rows_of(place, "numbers", "key", "n"))
    wrong = list(differences("sink numbers", shown, numbered))
    state = state_of(place, "numbered", "number")
    if state != {key: {"n": count} for key, count in keys.items()}:
        wrong.append(f"the state is {state}, the input gives {dict(keys)}")
    return wrong


def judge(evidence: Evidence, shape: Shape, events: int) -> list[str]:
    """What is wrong: every sink must show each of the first `events` events once, and the state of every part
    be of all of them. Pure."""
    return list(_wrong(evidence, shape, events))


def _wrong(evidence: Evidence, shape: Shape, events: int) -> Iterator[str]:
    keys = Counter(shape.key_of(event) for event in range(events))
    numbered = Counter((key, n) for key, count in keys.items() for n in range(1, count + 1))
    totals = Counter[int]()
    for key, n in evidence.numbers:
        totals[key] += n
    yield from differences(
        "sink events", Counter(evidence.events), Counter((event,) for event in range(events))
    )
    shown = Counter((key, n % RENUMBERED) for key, n in evidence.numbers)
    yield from differences("sink numbers", shown, numbered)
    met = Counter({(key, way, n): 1 for key, n in numbered for way in ("short", "long")})
    yield from differences("sink met", Counter(row[:3] for row in evidence.met), met)
    last = Counter[int]()
    for key, _, _, total in evidence.met:
        last[key] = max(last[key], total)
    yield from differences("totals in sink met", last, totals)
    if evidence.number != {key: {"n": count} for key, count in keys.items()}:
        yield f"the state of part 'numbered' is {evidence.number}, the input gives {dict(keys)}"
    state = {key: {"short": n, "long": n, "total": totals[key]} for key, n in keys.items()}
    if evidence.meet != state:
        yield f"the state of part 'joined' is {evidence.meet}, it should be {state}"
    yield from _mixed_codes(evidence.numbers)


def differences(what: str, found: Counter[Any], expected: Counter[Any]) -> Iterator[str]:
    if missing := expected - found:
        yield f"{what}: {missing.total()} are missing, such as {min(missing)}"
    if more := found - expected:
        yield f"{what}: {more.total()} are too many, such as {min(more)}"


def _mixed_codes(numbers: Rows) -> Iterator[str]:
    """No row of a key is of old code after one of new code."""
    old, new = Counter[int](), dict[int, int]()
    for key, n in numbers:
        if n < RENUMBERED:
            old[key] = max(old[key], n)
        else:
            new[key] = min(new.get(key, n), n)
    for key, n in new.items():
        if old[key] >= n - RENUMBERED:
            yield f"key {key} has number {old[key]} of old code after {n} of new code"


def rows_of(place: Place, sink: str, *columns: str) -> Rows:
    table = pq.read_table(place.sink(sink), columns=list(columns))
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def state_of(place: Place, part: str, uid: str) -> State:
    """Of an operator at the newest commit of its part."""
    storage = storage_of(place, part)
    found = operator_state(storage, History(storage).load(), uid)
    return {key[0]: values for key, values in found.items()}
