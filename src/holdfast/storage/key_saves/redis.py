"""Saves of single keys in Redis: one value per key, replaced only by a later one.

A save is as durable as the server makes it: set `appendonly yes` and `appendfsync always` for one that
survives a power cut, `everysec` for one that may lose the last second. `wait_replicas` adds copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.errors import MachineError, StorageError
from holdfast.storage.key_saves.contract import ORDER_BYTES, StateId, StateStorage

_SAVE_UNLESS_LATER = f"""
local there = redis.call('GETRANGE', KEYS[1], 0, {ORDER_BYTES - 1})
local given = string.sub(ARGV[1], 1, {ORDER_BYTES})
for place = 1, #there do
  local a, b = string.byte(there, place), string.byte(given, place) or -1
  if a > b then return 0 end
  if a < b then break end
end
redis.call('SET', KEYS[1], ARGV[1])
return 1
"""

_clients: dict[RedisStateStorage, Any] = {}


@dataclass(frozen=True)
class RedisStateStorage(StateStorage):
    """Saves in the Redis at `url`, under `<prefix>:<uid>:<key bytes>`. One prefix per checkpoint."""

    url: str
    prefix: str = "holdfast"
    timeout_seconds: float = 5.0
    wait_replicas: int = 0

    def save(self, id: StateId, data: bytes) -> None:
        self.save_many([(id, data)])

    def save_many(self, saves: Sequence[tuple[StateId, bytes]]) -> None:
        def work(client: Any) -> list[Any]:
            pipeline = client.pipeline(transaction=False)
            for id, data in saves:
                pipeline.eval(_SAVE_UNLESS_LATER, 1, self._name(id), data)
            if self.wait_replicas:
                pipeline.wait(self.wait_replicas, int(self.timeout_seconds * 1_000))
            done: list[Any] = pipeline.execute()
            return done

        done = self._call(work)
        for (id, _), kept in zip(saves, done, strict=False):
            if not kept:
                raise self.superseded(id)
        if self.wait_replicas and done[-1] < self.wait_replicas:
            where = _without_password(self.url)
            raise StorageError(f"{done[-1]} of {self.wait_replicas} replicas of {where} took a save")

    def fetch(self, id: StateId) -> bytes | None:
        return self.fetch_many([id])[0]

    def fetch_many(self, ids: Sequence[StateId]) -> list[bytes | None]:
        found: list[bytes | None] = self._call(lambda client: client.mget([self._name(id) for id in ids]))
        return found

    def keys(self, operator: str) -> Iterator[StateId]:
        start = self._name(StateId(operator, b""))
        # Letters that SCAN takes for wildcards cannot be in a uid, but can be in the user's prefix.
        pattern = b"".join(b"\\" + bytes([c]) if c in b"*?[]\\" else bytes([c]) for c in start) + b"*"
        for name in self._call(lambda client: list(client.scan_iter(match=pattern, count=1_000))):
            yield StateId(operator, name[len(start) :])

    def _name(self, id: StateId) -> bytes:
        return f"{self.prefix}:{id.operator}:".encode() + id.key

    def _call(self, work: Any) -> Any:
        redis = _redis()
        client = _clients.get(self)
        if client is None:
            client = _clients[self] = redis.Redis.from_url(
                self.url, socket_timeout=self.timeout_seconds, socket_connect_timeout=self.timeout_seconds
            )
        try:
            return work(client)
        except redis.RedisError as cause:
            raise StorageError(f"Redis at {_without_password(self.url)} refused: {cause}") from cause


def _redis() -> Any:
    try:
        import redis
    except ImportError as cause:
        raise MachineError(
            "RedisStateStorage needs the package redis; install it: pip install 'holdfast[redis]'"
        ) from cause
    return redis


def _without_password(url: str) -> str:
    return url.rpartition("@")[2]
