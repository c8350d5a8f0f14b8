"""Whatever a function does to list and map states, they hold what Python's own would: epoch after epoch,
whether or not rows that fail are set aside."""

from __future__ import annotations

import copy
import json
from collections import defaultdict
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.graph.functions import KeyedFunction
from holdfast.graph.job_graph import MAIN_OUTPUT, OnError
from holdfast.state.cells.declarations import ListState, MapState
from tests.unit.tasks.operators.operator_kit import Harness

ROWS = pa.schema([("k", pa.int64()), ("what", pa.string()), ("at", pa.int64()), ("v", pa.int64())])
WHATS = (
    "set", "get", "default", "setdefault", "pop", "has", "clear map", "append", "change", "clear list",
    "grow", "show",
)  # fmt: skip


class Plain:
    """Python's own, in the place of states."""

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        self.items: list[list[int]] = []
        self.lists: dict[str, list[int]] = {}


def do(own: Any, what: str, at: int, v: int) -> Any:
    """One row's doings with states, or with Python's own, and what it saw."""
    match what:
        case "set":
            own.numbers[at] = v
        case "get":
            return own.numbers.get(at)
        case "default":
            return own.numbers.get(at, "none")
        case "setdefault":
            return own.numbers.setdefault(at, v)
        case "pop":
            return own.numbers.pop(at, None)
        case "has":
            return at in own.numbers
        case "clear map":
            own.numbers.clear()
        case "append":
            own.items.append([v])
        case "change":
            for item in own.items:
                item.append(v)
        case "clear list":
            own.items.clear()
        case "grow":
            own.lists.setdefault(str(at), []).append(v)
        case "show":
            lists = {name: own.lists[name] for name in sorted(own.lists)}
            return [sorted(own.numbers.items()), list(own.items), lists]
    return None


class Doing(KeyedFunction):
    output = "k long, saw string"
    numbers = MapState("long", "long")
    items = ListState("array<long>")
    lists = MapState("string", "array<long>")

    def process(self, row: Any, ctx: Any) -> Any:
        saw = do(self, row.what.removeprefix("fail "), row.at, row.v)
        yield row.k, json.dumps(saw)
        if row.what.startswith("fail "):
            raise ValueError("told to")


def expected(epochs: list[list[Any]]) -> list[list[tuple[int, str]]]:
    """What the function gives out in each epoch: the rows of a key together, keys by their first row."""
    keys: defaultdict[int, Plain] = defaultdict(Plain)
    given = []
    for rows in epochs:
        by_key: dict[int, list[tuple[int, str]]] = {}
        for k, what, at, v in rows:
            made = by_key.setdefault(k, [])
            if what.startswith("fail "):
                do(copy.deepcopy(keys[k]), what.removeprefix("fail "), at, v)
            else:
                made.append((k, json.dumps(do(keys[k], what, at, v))))
        given.append([row for made in by_key.values() for row in made])
    return given


def outputs(epochs: list[list[Any]], on_error: OnError) -> list[list[tuple[int, str]]]:
    job = Harness(Doing(), ROWS, ["k"], on_error=on_error)
    given = [job.epoch_of(rows).outputs[MAIN_OUTPUT] for rows in epochs]
    return [list(zip(*table.to_pydict().values(), strict=True)) for table in given]


def rows(whats: list[str]) -> Any:
    small = st.integers(0, 2)
    row = st.tuples(small, st.sampled_from(whats), small, st.integers(0, 9))
    # At the end all keys show what has become of them.
    last = [(k, "show", 0, 0) for k in range(3)]
    return st.lists(st.lists(row, max_size=12), min_size=1, max_size=4).map(lambda epochs: [*epochs, last])


@settings(deadline=None)
@given(rows(list(WHATS)))
def test_lists_and_maps_hold_what_pythons_own_would(epochs: list[list[Any]]) -> None:
    wanted = expected(epochs)
    assert outputs(epochs, "fail") == wanted
    assert outputs(epochs, "dead-letter") == wanted


@settings(deadline=None)
@given(rows([*WHATS, *(f"fail {what}" for what in WHATS)]))
def test_rows_that_fail_leave_lists_and_maps_as_they_were(epochs: list[list[Any]]) -> None:
    assert outputs(epochs, "dead-letter") == expected(epochs)
