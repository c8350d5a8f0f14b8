"""Rows into a real Redis, each once: behind a cable that can be cut, on a server that went back."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
import redis as client_library

from holdfast.connectors.contract import StagedPart
from holdfast.connectors.lanes import LaneMark, LaneRows, Outcome
from holdfast.connectors.redis import sink as sink_module
from holdfast.connectors.redis.sink import RedisSink
from holdfast.errors import DefinitionError
from holdfast.testing import conformance
from holdfast.testing.conformance.sink_columns import COLUMNS
from holdfast.testing.conformance.sink_marks import MARKS
from holdfast.testing.conformance.sink_showing import SHOWING
from tests.services.cable import Cable
from tests.services.servers import Server, redis_server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with redis_server() as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Any]:
    with client_library.Redis.from_url(server.url) as client:
        client.flushall()
        client.config_set("maxmemory-policy", "noeviction")
        yield client


@pytest.fixture
def cable(server: Server) -> Iterator[Cable]:
    port = urlsplit(server.url).port
    assert port is not None
    with Cable(port) as cable:
        yield cable


def shown(client: Any, prefix: str) -> list[tuple[str, int]]:
    """The rows of a stream, as a plain reader finds them."""
    return [(of[b"user"].decode(), int(of[b"total"])) for _, of in client.xrange(prefix)]


def test_a_stream_keeps_what_is_promised_of_sinks(server: Server, client: Any) -> None:
    def make(place: str) -> RedisSink:
        return RedisSink(server.url, place, form="stream", timeout_seconds=5)

    # Lanes are written one after another, and shown as they are: it says atomic="chunk".
    asked = {*SHOWING.then(MARKS).then(COLUMNS).names} - {"all-or-nothing"}
    report = conformance.check_sink(make, lambda place: shown(client, place), only=asked)
    assert {"two-at-once", "zombie"} <= set(report.kept)


def test_a_stream_keeps_what_is_promised_of_lanes(server: Server, client: Any, cable: Cable) -> None:
    def make(place: str) -> RedisSink:
        return RedisSink(f"redis://{cable.hosts}/0", place, form="stream", timeout_seconds=2)

    @contextlib.contextmanager
    def disturbed(place: str) -> Iterator[None]:
        cable.refuse()
        try:
            yield
        finally:
            cable.restore()

    report = conformance.check_lanes(make, lambda place: shown(client, place), disturbed=disturbed)
    assert report.kept


def lane(*numbers: int, epoch: int = 1, before: LaneMark | None = None, input: str = "") -> LaneRows:
    table = pa.table({"k": [f"k{n}" for n in numbers], "n": list(numbers)})
    part = StagedPart(0, len(numbers), lambda: table)
    return LaneRows(0, epoch, before or LaneMark(0), len(numbers), 1, input, (part,))


def begun(server: Server, form: Any = "hash", prefix: str = "p") -> Any:
    key = () if form == "stream" else "k"
    lanes = RedisSink(server.url, prefix, form=form, key=key).lane_writer("job", "out").open(1)
    lanes.begin(0)
    return lanes


def test_hashes_and_json_hold_the_newest_row_of_a_key(server: Server, client: Any) -> None:
    for form in ("hash", "json"):
        lanes = begun(server, form, form)
        assert lanes.write(lane(1, 2)).outcome is Outcome.WRITTEN
        table = pa.table({"k": ["k1", "a:b", None], "n": [None, 5, 6]})
        more = LaneRows(0, 2, LaneMark(1, 2), 3, 1, "", (StagedPart(0, 3, lambda t=table: t),))
        assert lanes.write(more).outcome is Outcome.WRITTEN
    assert client.hgetall("hash:k1") == {b"k": b"k1"}, "a null is a field that is not there"
    assert client.hgetall("hash:k2") == {b"k": b"k2", b"n": b"2"}
    assert client.hget("hash:a%3Ab", "n") == b"5"
    assert client.hget("hash:%null", "n") == b"6"
    assert client.get("json:k1") == b'{"k":"k1","n":null}'


def test_chunks_go_on_where_another_writer_stopped(
    server: Server, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_module, "CHUNK_ROWS", 2)
    lanes, rows = begun(server, "stream"), lane(1, 2, 3, 4, 5)
    assert lanes._chunk(rows, 0, [*lanes._encoded(rows.parts[0].load())][:2])[0] == "written"
    assert lanes.marks()[0] == LaneMark(1, 2)
    results = list[Any]()
    threads = [threading.Thread(target=lambda: results.append(lanes.write(rows).outcome)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(results) <= {Outcome.WRITTEN, Outcome.ALREADY}
    assert [int(of[b"n"]) for _, of in client.xrange("p")] == [1, 2, 3, 4, 5]


def test_a_server_that_went_back_is_noticed(server: Server, client: Any) -> None:
    lanes = begun(server)
    lanes.write(lane(1, epoch=1))
    older = client.dump("p:holdfast:job/out")
    lanes.write(lane(2, epoch=2, before=LaneMark(1, 1)))
    client.restore("p:holdfast:job/out", 0, older, replace=True)
    third = lane(3, epoch=3, before=LaneMark(2, 1))
    assert lanes.write(third).outcome is Outcome.WENT_BACK
    client.delete("p:holdfast:job/out")
    assert lanes.write(third).outcome is Outcome.WENT_BACK
    first = lane(3, epoch=3)
    assert lanes.write(first).outcome is Outcome.WENT_BACK, "marks are there before the first epoch"
    assert not client.exists("p:k3")


def test_other_rows_of_an_epoch_are_not_mixed_with_those_shown(server: Server, client: Any) -> None:
    lanes = begun(server, "stream")
    lanes.write(lane(1, input="a"))
    assert lanes.write(lane(7, input="b")).outcome is Outcome.OTHER_ROWS
    assert len(client.xrange("p")) == 1


def test_nothing_of_a_chunk_is_written_where_one_key_is_taken_by_another_type(
    server: Server, client: Any
) -> None:
    """Scripts do not roll back: the last row would be refused after the first was written."""
    client.set("p:k2", "theirs")
    lanes = begun(server)
    result = lanes.write(lane(1, 2))
    assert result.outcome is Outcome.REFUSED
    assert "p:k2 is a string" in result.reason
    assert not client.exists("p:k1")
    assert lanes.marks()[0] == LaneMark(0)


def test_a_server_that_drops_keys_by_itself_is_refused(server: Server, client: Any) -> None:
    sink = RedisSink(server.url, "p", key="k")
    sink.check()
    client.config_set("maxmemory-policy", "allkeys-lru")
    with pytest.raises(DefinitionError, match="allkeys-lru"):
        sink.check()


def test_a_sink_that_cannot_be_is_refused() -> None:
    wrong: list[dict[str, Any]] = [{"form": "set"}, {"form": "stream", "key": "k"}, {"form": "hash"}]
    for more in wrong:
        with pytest.raises(DefinitionError):
            RedisSink("redis://127.0.0.1", "p", **more)
    with pytest.raises(DefinitionError, match="no column 'k'"):
        RedisSink("redis://127.0.0.1", "p", key="k").check_schema(pa.schema([("n", pa.int64())]))
