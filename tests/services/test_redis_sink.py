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
from holdfast.connectors.lanes import LANES, LaneMark, LaneRows, Outcome
from holdfast.connectors.redis import sink as sink_module
from holdfast.connectors.redis.sink import RedisSink
from holdfast.errors import DefinitionError
from holdfast.secret import Secret
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


def test_a_row_does_not_take_the_place_of_the_marks(server: Server, client: Any) -> None:
    """Its key can be theirs: they would be gone, and with them what is known of all lanes."""
    lanes = RedisSink(server.url, "p", key=("k", "n")).lane_writer("job", "out").open(1)
    lanes.begin(0)
    table = pa.table({"k": ["holdfast"], "n": ["job/out"]})
    result = lanes.write(LaneRows(0, 1, LaneMark(0), 1, 1, "", (StagedPart(0, 1, lambda: table),)))
    assert result.outcome is Outcome.REFUSED
    assert "p:holdfast:job/out has the marks" in result.reason
    assert len(lanes.marks()) == LANES


def test_a_server_whose_memory_is_full_is_waited_for_and_takes_nothing(server: Server, client: Any) -> None:
    """`DEL` frees memory and is not refused: after it a script may write as much as it likes."""
    for form in ("hash", "json", "stream"):
        lanes = begun(server, form, form)
        client.config_set("maxmemory", 1)
        try:
            result = lanes.write(lane(1, 2))
            assert result.outcome is Outcome.UNAVAILABLE
            assert "maxmemory" in result.reason
        finally:
            client.config_set("maxmemory", 0)
        assert client.keys(f"{form}*") == [f"{form}:holdfast:job/out".encode()], "nothing was written"
        assert lanes.write(lane(1, 2)).outcome is Outcome.WRITTEN


def test_a_server_that_cannot_write_to_its_disk_is_waited_for(server: Server, client: Any) -> None:
    lanes = begun(server)
    client.config_set("min-replicas-to-write", 1)
    try:
        assert lanes.write(lane(1)).outcome is Outcome.UNAVAILABLE
    finally:
        client.config_set("min-replicas-to-write", 0)
    assert lanes.write(lane(1)).outcome is Outcome.WRITTEN


def test_a_user_who_may_add_rows_and_not_move_the_mark_adds_none(
    server: Server, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows without their mark would come again with every try."""
    monkeypatch.setenv("REDIS_PASSWORD", "of-the-writer-2207")
    client.execute_command("ACL", "SETUSER", "writer", "on", ">of-the-writer-2207", "~*", "+@all", "-hset")
    begun(server, "stream")
    secret = Secret.env("REDIS_PASSWORD")
    sink = RedisSink(server.url, "p", form="stream", username="writer", password=secret)
    try:
        result = sink.lane_writer("job", "out").open(1).write(lane(1))
    finally:
        client.execute_command("ACL", "DELUSER", "writer")
    assert result.outcome is Outcome.REFUSED
    assert "can't run this command" in result.reason
    assert not client.exists("p")


def test_a_value_that_the_server_never_takes_is_refused_with_its_row(server: Server, client: Any) -> None:
    """The server closes the connection of who sends it: that would look like an outage, for ever."""
    client.config_set("proto-max-bulk-len", 2 << 20)
    try:
        lanes, table = begun(server), pa.table({"k": ["a", "b"], "text": ["x", "ü" * (3 << 19)]})
        rows = LaneRows(0, 1, LaneMark(0), 2, 1, "", (StagedPart(0, 2, lambda: table),))
        result = lanes.write(rows)
    finally:
        client.config_set("proto-max-bulk-len", 512 << 20)
    assert result.outcome is Outcome.REFUSED
    assert f"row 1 of the lane, for key p:b, has a value of {3 << 20} bytes" in result.reason
    assert not client.exists("p:a")
    assert lanes.write(rows).outcome is Outcome.WRITTEN


def test_large_rows_are_sent_in_smaller_chunks(
    server: Server, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server answers nobody else while it takes a chunk in and works on it."""
    monkeypatch.setattr(sink_module, "CHUNK_BYTES", 300_000)
    lanes, table = begun(server, "stream"), pa.table({"text": ["x" * 200_000] * 9 + ["y"] * 9})
    rows = LaneRows(0, 1, LaneMark(0), 18, 1, "", (StagedPart(0, 18, lambda: table),))
    client.config_resetstat()
    assert lanes.write(rows).outcome is Outcome.WRITTEN
    assert client.info("commandstats")["cmdstat_eval"]["calls"] == 9
    assert client.xlen("p") == 18


def test_rows_of_as_many_columns_as_a_script_takes_are_written_and_more_are_refused(
    server: Server, client: Any
) -> None:
    names = [f"c{n}" for n in range(sink_module.COLUMNS_MAX)]
    table = pa.table({name: ["v"] for name in names})
    rows = LaneRows(0, 1, LaneMark(0), 1, 1, "", (StagedPart(0, 1, lambda: table),))
    assert begun(server, "stream").write(rows).outcome is Outcome.WRITTEN
    more = pa.schema([(name, pa.string()) for name in (*names, "k")])
    with pytest.raises(DefinitionError, match="columns, and as hash Redis takes 3500"):
        RedisSink(server.url, "p", key="k").check_schema(more)
    RedisSink(server.url, "p", key="k", form="json").check_schema(more)


def test_a_wrong_password_is_refused_and_a_rotated_one_is_used(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_PASSWORD", "the-first-9141")
    with redis_server("--requirepass", "the-first-9141") as guarded:
        sink = RedisSink(guarded.url, "p", key="k", password=Secret.env("REDIS_PASSWORD"))
        sink.check()
        lanes = sink.lane_writer("job", "out").open(1)
        lanes.begin(0)
        with client_library.Redis.from_url(guarded.url, password="the-first-9141") as admin:
            admin.config_set("requirepass", "the-second-9142")
            admin.client_kill_filter(_type="normal", skipme=True)
            with pytest.raises(DefinitionError, match=r"refuses the default user.*correct username") as wrong:
                lanes.write(lane(1))
            assert "9141" not in str(wrong.value)
            monkeypatch.setenv("REDIS_PASSWORD", "the-second-9142")
            assert lanes.write(lane(1)).outcome is Outcome.WRITTEN
        for password in (None, Secret.env("HOME")):
            with pytest.raises(DefinitionError, match="correct username, password"):
                RedisSink(guarded.url, "p", key="k", password=password).check()


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
