"""Streams of a real Redis as a source: what is planned, and what has gone away."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest
import redis as client_library

from holdfast.connectors.redis import stream_source
from holdfast.connectors.redis.stream_source import RedisStreamSource
from holdfast.errors import DefinitionError, InputVanished, Unavailable
from holdfast.secret import Secret
from holdfast.testing import conformance
from tests.services.servers import Server, free_port, redis_server

ROWS = 12


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with redis_server() as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Any]:
    with client_library.Redis.from_url(server.url) as client:
        client.flushall()
        yield client


def fill(client: Any, stream: str = "s", rows: int = ROWS, first: int = 0) -> list[str]:
    return [client.xadd(stream, {"n": number}).decode() for number in range(first, first + rows)]


def source(server: Server, *streams: str, **more: Any) -> RedisStreamSource:
    return RedisStreamSource(server.url, streams or ("s",), schema="n long", timeout_seconds=5, **more)


def test_a_stream_keeps_what_is_promised_about_planning(server: Server, client: Any) -> None:
    fill(client)
    report = conformance.check_source(lambda: source(server))
    assert {"end-at", "exhausted", "max-rows", "lag"} <= set(report.kept)


def test_several_streams_keep_it_as_well(server: Server, client: Any) -> None:
    for stream in ("a", "b", "c"):
        fill(client, stream, 5)
    report = conformance.check_source(lambda: source(server, "a", "b", "c", "empty"))
    assert {"end-at", "exhausted", "max-rows", "goes-on"} <= set(report.kept)


def test_every_stream_gets_its_turn_where_there_is_not_room_for_all(server: Server, client: Any) -> None:
    for stream in ("a", "b", "c"):
        fill(client, stream, 5)
    reader, after, seen = source(server, "a", "b", "c").reader([]), None, set()
    for _ in range(3):
        slice = reader.next(after, 1, 0)
        assert slice is not None
        seen |= {each[0] for each in slice.detail["ranges"]}
        after = slice.end
    assert seen == {"a", "b", "c"}


def test_a_slice_is_cut_into_ranges_that_tasks_read(
    server: Server, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_source, "PAGE_ROWS", 3)
    monkeypatch.setattr(stream_source, "RANGE_ROWS", 6)
    ids = fill(client, rows=14)
    slice = source(server).reader([]).next(None, 13, 0)
    assert slice is not None
    assert slice.rows == 13
    assert slice.detail["ranges"] == [
        ["s", "", ids[5], 6], ["s", ids[5], ids[11], 6], ["s", ids[11], ids[12], 1]
    ]  # fmt: skip
    assert slice.end["s"][0] == ids[12], "a slice ends at an entry that exists"


def test_a_stream_that_was_trimmed_beyond_the_position_is_refused(server: Server, client: Any) -> None:
    ids = fill(client)
    reader = source(server).reader([])
    first = reader.next(None, 4, 0)
    client.xtrim("s", minid=ids[6], approximate=False)
    with pytest.raises(InputVanished) as refused:
        reader.next(first and first.end, 4, 0)
    for part in (ids[3], ids[6], "another uid"):
        assert part in str(refused.value)


def test_a_stream_that_was_made_again_with_the_same_ids_is_refused(server: Server, client: Any) -> None:
    for number in range(1, 5):
        client.xadd("s", {"n": number}, id=f"{number}-0")
    reader = source(server).reader([])
    first = reader.next(None, 3, 0)
    client.delete("s")
    for number in range(1, 9):
        client.xadd("s", {"n": number * 100}, id=f"{number}-0")
    with pytest.raises(InputVanished, match="entry 3-0"):
        reader.next(first and first.end, 4, 0)


def test_an_entry_that_was_deleted_from_a_planned_slice_is_noticed(server: Server, client: Any) -> None:
    ids = fill(client)
    reader = source(server).reader([])
    slice = reader.next(None, 8, 0)
    assert slice is not None
    reader.verify(slice)
    client.xdel("s", ids[4])
    with pytest.raises(InputVanished, match="some of the 8 entries"):
        reader.verify(slice)


def test_released_entries_are_removed_only_where_that_was_asked_for(server: Server, client: Any) -> None:
    fill(client)
    kept = source(server).reader([])
    slice = kept.next(None, 5, 0)
    assert slice is not None
    kept.released(slice.end)
    assert client.xlen("s") == ROWS
    trimming = source(server, trim=True).reader([])
    trimming.released(slice.end)
    assert client.xlen("s") == ROWS - 4, "the entry at the position stays: it proves the place"
    assert trimming.next(slice.end, None, 0) is not None


def test_something_else_than_a_stream_is_refused_before_the_run(server: Server, client: Any) -> None:
    client.set("s", "a text")
    for stream, wrong in (("missing", False), ("s", True)):
        made = source(server, stream)
        if wrong:
            with pytest.raises(DefinitionError, match=r"does not give stream 's': .*wrong kind of value"):
                made.check()
        else:
            made.check()


def test_a_stream_that_gives_way_to_something_else_ends_the_run_with_its_name(
    server: Server, client: Any
) -> None:
    fill(client)
    reader = source(server).reader([])
    first = reader.next(None, 4, 0)
    client.delete("s")
    client.set("s", "a text")
    with pytest.raises(DefinitionError, match="does not give stream 's'"):
        reader.next(first and first.end, 4, 0)


def test_a_stream_that_was_deleted_and_begun_again_is_refused_with_the_range(
    server: Server, client: Any
) -> None:
    fill(client)
    reader = source(server).reader([])
    first = reader.next(None, 4, 0)
    assert first is not None
    client.delete("s")
    with pytest.raises(InputVanished, match="it is empty now"):
        reader.next(first.end, 4, 0)
    newer = fill(client, rows=20)
    with pytest.raises(InputVanished, match=rf"the oldest entry there now is {newer[0]}"):
        reader.next(first.end, 4, 0)


def test_rights_that_were_taken_away_and_a_wrong_password_are_named(
    server: Server, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(client)
    monkeypatch.setenv("REDIS_PASSWORD", "of-the-reader-7713")
    client.execute_command("ACL", "SETUSER", "reader", "on", ">of-the-reader-7713", "~*", "+@all")
    made = source(server, username="reader", password=Secret.env("REDIS_PASSWORD"))
    made.check()
    reader = made.reader([])
    assert reader.next(None, 4, 0) is not None
    client.execute_command("ACL", "SETUSER", "reader", "resetkeys", "~other")
    with pytest.raises(DefinitionError, match=r"refuses reader: .*access one of the keys"):
        reader.next(None, 4, 0)
    of_reader = {each["id"] for each in client.client_list() if each["user"] == "reader"}
    client.execute_command("ACL", "DELUSER", "reader")
    # They are closed a moment later, and serve anyone's commands until then.
    while of_reader & {each["id"] for each in client.client_list()}:
        pass
    with pytest.raises(DefinitionError, match=r"refuses reader: .*invalid username-password") as refused:
        made.check()
    assert "7713" not in str(refused.value)


def test_a_server_that_is_not_there_is_unavailable() -> None:
    reader = RedisStreamSource(f"redis://127.0.0.1:{free_port()}/0", "s", schema="n long").reader([])
    with pytest.raises(Unavailable, match="cannot be used now"):
        reader.next(None, None, 0)


def test_a_server_that_does_not_answer_is_unavailable_until_it_does(client: Any, server: Server) -> None:
    fill(client)
    made = RedisStreamSource(server.url, "s", schema="n long", timeout_seconds=0.3)
    server.signal(signal.SIGSTOP)
    try:
        with pytest.raises(Unavailable):
            made.reader([]).next(None, None, 0)
    finally:
        server.signal(signal.SIGCONT)
    slice = made.reader([]).next(None, None, 0)
    assert slice is not None
    assert slice.rows == ROWS


def test_a_source_that_cannot_be_is_refused() -> None:
    for url, streams, more in [
        ("http://127.0.0.1", "s", {}),
        ("redis://user:pass@127.0.0.1", "s", {}),
        ("redis://127.0.0.1", [], {}),
        ("redis://127.0.0.1", ["s", "s"], {}),
        ("redis://127.0.0.1", "s", {"format": "xml"}),
    ]:
        with pytest.raises(DefinitionError) as refused:
            RedisStreamSource(url, streams, schema="n long", **more)
        assert "pass@" not in str(refused.value)
