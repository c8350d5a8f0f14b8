"""Rows by key into a real OpenSearch, by the function that the example has: the newest of each key, whatever
is written again, late or across a kill of the server."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.connectors.contract import StagedPart
from holdfast.connectors.upsert import UpsertSink
from holdfast.errors import Unavailable
from holdfast.testing import conformance
from holdfast.testing.conformance.sink_showing import SHOWING
from tests.services.search_node import SearchNode

EXAMPLE = Path(__file__).parents[2] / "examples" / "search_orders.py"

Into = Callable[[str], Callable[[pa.Table, pa.Table, int], None]]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchNode]:
    with SearchNode(tmp_path_factory.mktemp("opensearch")) as node:
        yield node


@pytest.fixture
def into(node: SearchNode, monkeypatch: pytest.MonkeyPatch) -> Into:
    monkeypatch.setenv("SEARCH_URL", node.url)
    found: Into = runpy.run_path(str(EXAMPLE))["into"]
    return found


@pytest.fixture
def index(node: SearchNode, request: pytest.FixtureRequest) -> str:
    name = re.sub(r"\W+", "-", request.node.name.lower())
    node.make(name)
    return name


def publish(sink: UpsertSink, epoch: int, *rows: tuple[Any, ...]) -> None:
    users, totals, gone = zip(*rows, strict=True)
    table = pa.table({"user": list(users), "total": list(totals), "gone": list(gone)})
    sink.publisher("job", "out").publish(epoch, [StagedPart(0, table.num_rows, lambda: table)])


def shown(node: SearchNode, index: str) -> dict[str, int]:
    return {found["user"]: found["total"] for found in node.documents(index)}


def test_an_index_keeps_what_is_promised_of_sinks(node: SearchNode, into: Into) -> None:
    made = set()

    def make(place: str) -> UpsertSink:
        index = re.sub(r"\W+", "-", place.lower())
        if index not in made:
            node.make(index)
            made.add(index)
        return UpsertSink(into(index), key="user", keeps_newest=True)

    def read(place: str) -> list[tuple[Any, ...]]:
        return [tuple(found.values()) for found in node.documents(re.sub(r"\W+", "-", place.lower()))]

    report = conformance.check_sink(make, read, only=SHOWING.names)
    assert {"again-in-another-run", "two-at-once", "zombie"} <= set(report.kept)


def test_an_older_epoch_changes_nothing_not_even_a_deleted_key(
    node: SearchNode, into: Into, index: str
) -> None:
    sink = UpsertSink(into(index), key="user", deleted="gone", keeps_newest=True)
    publish(sink, 1, ("anna", 1, False), ("ben", 2, False))
    publish(sink, 2, ("anna", 5, False), ("ben", 2, True), ("cleo", 3, True))
    late = (1, ("anna", 1, False), ("ben", 2, False), ("cleo", 9, False))
    publish(sink, *late)
    assert shown(node, index) == {"anna": 5}
    publish(sink, 2, ("anna", 5, False), ("ben", 2, True), ("cleo", 3, True))
    assert shown(node, index) == {"anna": 5}, "the same epoch again"
    publish(sink, 3, ("ben", 7, False))
    assert shown(node, index) == {"anna": 5, "ben": 7}, "a key may come back"


def test_a_server_that_was_killed_has_what_it_took_and_takes_the_epoch_again(
    node: SearchNode, into: Into, index: str
) -> None:
    sink = UpsertSink(into(index), key="user", deleted="gone", keeps_newest=True)
    publish(sink, 1, ("anna", 1, False), ("ben", 2, False))
    publish(sink, 2, ("ben", 2, True))
    node.kill()
    with pytest.raises(Unavailable, match="does not answer"):
        publish(sink, 3, ("anna", 8, False))
    node.start()
    assert shown(node, index) == {"anna": 1}
    publish(sink, 1, ("anna", 1, False), ("ben", 2, False))
    assert shown(node, index) == {"anna": 1}, "it remembers what was deleted"
    publish(sink, 3, ("anna", 8, False))
    assert shown(node, index) == {"anna": 8}


def test_a_document_that_the_index_refuses_is_an_error_with_its_key(into: Into, index: str) -> None:
    sink = UpsertSink(into(index), key="user", keeps_newest=True)
    publish(sink, 1, ("anna", 1, False))
    with pytest.raises(ValueError, match="refuses 'ben'"):
        publish(sink, 2, ("ben", "not a number", False))
