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


def judge(evidence: Evidence, shape: Shape, events: int, after: int = 0) -> list[str]:
    """What is wrong: every sink must show each of the first `events` events once, and the state of every part
    be of all of them. `after`: of so many the job began with what a savepoint knew, and has shown none. Pure.
    """
    return list(_wrong(evidence, shape, events, after))


def judge_repeated(
    evidence: Evidence, shape: Shape, events: int, after: int, repeated: Mapping[str, int]
) -> list[str]:
    """What is wrong of a job that began as above, at least once: nothing may be lost. `repeated`: how many
    rows each way had brought behind the barrier, which are counted twice. Pure."""
    return list(_lost(evidence, shape, events, after, repeated))


def _lost(
    evidence: Evidence, shape: Shape, events: int, after: int, repeated: Mapping[str, int]
) -> Iterator[str]:
    keys, numbered = _numbered(shape, events, after)
    yield from _missing(
        "sink events", Counter(evidence.events), Counter((event,) for event in range(after, events))
    )
    yield from _missing("sink numbers", Counter(evidence.numbers), numbered)
    if evidence.number != {key: {"n": count} for key, count in keys.items()}:
        yield f"the state of part 'numbered' is {evidence.number}, the input gives {dict(keys)}"
    distinct = {row[:3] for row in evidence.met}
    for way, more in repeated.items():
        # Which numbers the rows have depends on how many were repeated.
        shown = Counter(key for key, each, _ in distinct if each == way)
        yield from _missing(f"sink met, {way} way: keys", shown, Counter(key for key, _ in numbered))
        counted = Counter({key: values[way] for key, values in evidence.meet.items()})
        if keys - counted or counted.total() != events + more:
            yield f"the {way} way has brought {counted.total()} rows: not {events}, and {more} repeated ones"


def _numbered(shape: Shape, events: int, after: int) -> tuple[Counter[int], Counter[tuple[int, int]]]:
    """How many events each key has, and the numbers of those from `after` on."""
    keys = Counter(shape.key_of(event) for event in range(events))
    before = Counter(shape.key_of(event) for event in range(after))
    return keys, Counter((key, n) for key, count in keys.items() for n in range(before[key] + 1, count + 1))


def _wrong(evidence: Evidence, shape: Shape, events: int, after: int) -> Iterator[str]:
    keys, numbered = _numbered(shape, events, after)
    totals = Counter[int]()
    for key, n in _numbered(shape, after, 0)[1]:
        totals[key] += n
    for key, n in evidence.numbers:
        totals[key] += n
    yield from differences(
        "sink events", Counter(evidence.events), Counter((event,) for event in range(after, events))
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


def _missing(what: str, found: Counter[Any], expected: Counter[Any]) -> Iterator[str]:
    if missing := expected - found:
        yield f"{what}: {missing.total()} are missing, such as {min(missing)}"


def differences(what: str, found: Counter[Any], expected: Counter[Any]) -> Iterator[str]:
    yield from _missing(what, found, expected)
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
