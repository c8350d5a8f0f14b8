"""Keys saved in a real Redis that goes away, falls silent or drops connections: rows are processed all the
same, an empty state never takes the place of a good one, and the bypass opens and ends as documented.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from holdfast.state.files.saved_key import unpack
from holdfast.storage.key_saves.redis import RedisStateStorage
from holdfast.tasks.uncoordinated import saver
from holdfast.tasks.uncoordinated.circuit_breaker import Standing
from tests.contract.state_storage_suite import all_saves
from tests.services.cable import Cable
from tests.services.servers import Server, redis_server
from tests.unit.tasks.uncoordinated.kit import Shard, uncoordinated

DEADLINE = 30.0
USERS = [f"u{i}" for i in range(20)]


@pytest.fixture
def redis() -> Iterator[Server]:
    saver._savers.clear()
    with redis_server() as server:
        yield server
    saver._savers.clear()


@pytest.fixture
def cable(redis: Server) -> Iterator[Cable]:
    port = urlsplit(redis.url).port
    assert port is not None
    with Cable(port) as between:
        yield between


def through(cable: Cable) -> RedisStateStorage:
    return RedisStateStorage(f"redis://127.0.0.1:{cable.port}/0", timeout_seconds=1)


def events(redis: Server) -> dict[str, int]:
    """User -> events in its save, asked without the cable."""
    saves = all_saves(RedisStateStorage(redis.url), "op")
    return {id.key[5:].decode(): unpack(data, id).events for id, data in saves}


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.02)


def saved_and_lost(shard: Shard, redis: Server) -> None:
    """Every user is in a save with two events; then the working copy is gone."""
    shard.epoch(USERS * 2)
    shard.epoch(["other"], after_ms=2_000)
    shard.settle()
    assert {events(redis)[user] for user in USERS} == {2}
    shard.lose_copy()


def test_a_storage_that_is_gone_is_bypassed_after_ten_failures_and_asked_again_after_the_window(
    redis: Server, cable: Cable, tmp_path: Path
) -> None:
    shard = Shard(tmp_path, uncoordinated(through(cable), every="1s", bypass_for="3s", batch=1))
    saved_and_lost(shard, redis)
    cable.refuse()
    for number, user in enumerate(USERS[:9], start=1):
        assert shard.epoch([user]) == {user: 1}, "it goes on from nothing"
        assert shard.saver.fetcher.standing is Standing.ANSWERING, f"after {number} failures"
    shard.epoch([USERS[9]])
    assert shard.saver.fetcher.standing is Standing.BYPASSED
    shard.settle()
    cable.restore()
    asked = cable.requests
    shard.epoch([USERS[10]])
    assert shard.last is not None
    assert shard.last.counts.bypassed == 1
    assert cable.requests == asked, "left alone, although it is back"
    assert events(redis)[USERS[10]] == 2, "nothing of an unknown key is saved"
    until(lambda: shard.saver.fetcher.standing is Standing.PROBING, "the window to be over")
    assert shard.epoch([USERS[11]]) == {USERS[11]: 3}, "fetched again"
    assert shard.saver.fetcher.standing is Standing.ANSWERING
    assert shard.epoch(USERS) == {**dict.fromkeys(USERS, 3), USERS[11]: 4}, "the saves count"
    assert shard.last.discarded == 11, "what eleven users saw without their saves"


def test_a_storage_that_hangs_costs_an_epoch_one_time_out_and_no_good_state(
    redis: Server, tmp_path: Path
) -> None:
    storage = RedisStateStorage(redis.url, timeout_seconds=5)
    limits = {"fetch_timeout": "500ms", "failures_max": 3, "bypass_for": "2s"}
    shard = Shard(tmp_path, uncoordinated(storage, every="1s", batch=1, **limits))
    saved_and_lost(shard, redis)
    redis.signal(signal.SIGSTOP)
    try:
        for n in range(1, 4):
            began = time.monotonic()
            assert shard.epoch(USERS, after_ms=2_000) == dict.fromkeys(USERS, n)
            assert time.monotonic() - began < 5, "not one time-out for each of them"
        assert shard.saver.fetcher.standing is Standing.BYPASSED
        for n in range(4, 7):
            assert shard.epoch(USERS, after_ms=2_000) == dict.fromkeys(USERS, n)
    finally:
        redis.signal(signal.SIGCONT)
    assert {events(redis)[user] for user in USERS} == {2}, "held back"
    until(lambda: shard.saver.fetcher.standing is Standing.PROBING, "the window to be over")

    def fetched() -> bool:
        return shard.epoch(USERS[:1])[USERS[0]] == 3

    until(fetched, "a fetch to be answered")
    assert shard.epoch(USERS[1:]) == dict.fromkeys(USERS[1:], 3)


def test_only_fetches_wait_for_a_slow_storage(redis: Server, cable: Cable, tmp_path: Path) -> None:
    shard = Shard(tmp_path, uncoordinated(through(cable), every="1s"))
    shard.epoch(USERS)
    cable.cut()
    began = time.monotonic()
    for n in range(2, 7):
        assert shard.epoch(USERS, after_ms=2_000) == dict.fromkeys(USERS, n)
    assert time.monotonic() - began < 5
    assert events(redis) == {}
    cable.restore()

    def saved() -> bool:
        shard.settle()
        shard.epoch(["other"], after_ms=2_000)
        return set(USERS) <= set(events(redis))

    until(saved, "saves to follow")


def test_a_storage_that_fails_now_and_then_gets_every_key_in_the_end(
    redis: Server, cable: Cable, tmp_path: Path
) -> None:
    shard = Shard(tmp_path, uncoordinated(through(cable), every="1s", batch=3, failures_max=1_000))
    cable.break_every = 7
    count: Counter[str] = Counter()
    failed = 0
    for _ in range(30):
        count.update(USERS)
        assert set(shard.epoch(USERS, after_ms=2_000)) == set(USERS), "processing goes on"
        shard.settle()
        assert shard.last is not None
        failed += shard.last.counts.failed + shard.last.counts.unanswered
    assert failed, "nothing ever failed"
    cable.break_every = 0
    for _ in range(3):
        count.update(USERS)
        shard.epoch(USERS, after_ms=2_000)
        shard.settle()
    shard.epoch(["other"], after_ms=2_000)
    shard.settle()
    assert shard.last is not None
    saved = events(redis)
    assert sum(count.values()) - sum(saved[user] for user in USERS) == shard.last.discarded
