"""The contract of storages for states of single keys, on a real Redis and Postgres; and the two gone."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import DefinitionError, StorageError
from holdfast.storage.key_saves.contract import StateId, StateStorage
from holdfast.storage.key_saves.postgres import PostgresStateStorage
from holdfast.storage.key_saves.redis import RedisStateStorage
from holdfast.tasks.uncoordinated import saver
from tests.contract.state_storage_suite import ANN, StateStorageContract, save_of
from tests.services.postgres_kit import postgres
from tests.services.servers import Server, free_port, pooler, postgres_server, redis_server
from tests.unit.tasks.uncoordinated.kit import Shard, uncoordinated

__all__ = ["postgres"]


@pytest.fixture(scope="module")
def redis() -> Iterator[Server]:
    with redis_server() as server:
        yield server


class TestRedis(StateStorageContract):
    @pytest.fixture
    def storage(self, redis: Server) -> StateStorage:
        return RedisStateStorage(redis.url, prefix=f"job*{uuid.uuid4().hex}")


class TestPostgres(StateStorageContract):
    @pytest.fixture
    def storage(self, postgres: Server) -> StateStorage:
        return PostgresStateStorage(postgres.url, table=f"t{uuid.uuid4().hex}")


@pytest.fixture(scope="module")
def pooled(postgres: Server) -> Iterator[str]:
    with pooler(postgres, "transaction") as url:
        yield url


class TestPooledPostgres(StateStorageContract):
    @pytest.fixture
    def storage(self, pooled: str) -> StateStorage:
        return PostgresStateStorage(pooled, table=f"t{uuid.uuid4().hex}")


@pytest.mark.parametrize("kind", ["redis", "postgres"])
def test_a_server_that_is_not_there_is_an_error_and_never_an_empty_answer(kind: str) -> None:
    storage: StateStorage
    if kind == "redis":
        storage = RedisStateStorage(f"redis://:secret@127.0.0.1:{free_port()}/0", timeout_seconds=1)
    else:
        storage = PostgresStateStorage(f"postgresql://u@127.0.0.1:{free_port()}/x", timeout_seconds=1)
    with pytest.raises(StorageError) as fetching:
        storage.fetch(ANN)
    with pytest.raises(StorageError):
        storage.save(ANN, save_of(1))
    assert "secret" not in str(fetching.value)


def test_a_table_name_cannot_carry_more_than_a_name() -> None:
    with pytest.raises(DefinitionError, match="cannot be the name of a table"):
        PostgresStateStorage("postgresql://x", table="a; drop table b")


@pytest.mark.parametrize("kind", ["redis", "postgres"])
def test_processing_goes_on_while_a_server_hangs_and_saves_follow_when_it_is_back(
    kind: str, tmp_path: Path
) -> None:
    saver._savers.clear()
    start = redis_server if kind == "redis" else postgres_server
    with start() as server:
        storage = (
            RedisStateStorage(server.url, timeout_seconds=1)
            if kind == "redis"
            else PostgresStateStorage(server.url, timeout_seconds=1)
        )
        shard = Shard(tmp_path, uncoordinated(storage, every="1s", fetch_timeout="300ms", failures_max=2))
        shard.epoch(["ann"] * 3)
        server.signal(signal.SIGSTOP)
        try:
            for n in range(4, 9):
                assert shard.epoch(["ann"], after_ms=2_000) == {"ann": n}
            assert shard.epoch(["bob"]) == {"bob": 1}
        finally:
            server.signal(signal.SIGCONT)
        for n in range(9, 30):
            shard.settle()
            assert shard.epoch(["ann"], after_ms=2_000) == {"ann": n}
            if storage.fetch(StateId("op", b"\x01\x00\x00\x00\x03ann")) is not None:
                break
        shard.settle()
        kept = shard.epoch(["cid"], after_ms=1)
        assert kept == {"cid": 1}
        saved = storage.fetch(StateId("op", b"\x01\x00\x00\x00\x03ann"))
        assert saved is not None
