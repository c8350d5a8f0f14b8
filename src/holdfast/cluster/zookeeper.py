"""The connection to ZooKeeper: one session after another, small reads and writes, watches. Only this module
imports kazoo.

When the session is lost: every ephemeral node of ours is gone or soon will be; `on_change(Connection.LOST)`
says so, and a new session begins by itself, without them. When the connection is suspended: calls fail with
`RetryableError` after `CALL_SECONDS`; the session goes on if the connection is back in time.
Always true: no call takes much longer than `CALL_SECONDS`. Listeners and watches are called from kazoo's
threads and must return at once.
Never here: what the nodes mean (see membership, seats).
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.security import ACL, make_digest_acl

from holdfast.clock import Clock
from holdfast.errors import DefinitionError, HoldfastError, RetryableError

CONNECT_SECONDS = 15.0
CALL_SECONDS = 2.0
GRACE_SECONDS = 3.0
"""How long an old session may still take to come back once a new one was accepted."""
RETRY_SECONDS_MAX = 1.0
"""A seat is won back only if the connection is: so the wait between two tries stays short."""

TRIES_PER_SESSION = 4
"""A server that is just starting takes a connection and never answers. That must not cost the session, so one
try gets at most this part of it.
"""

Watch = Callable[[], None]


class Connection(Enum):
    """What became of the connection."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    LOST = "lost"


_CONNECTIONS = {
    KazooState.CONNECTED: Connection.CONNECTED,
    KazooState.SUSPENDED: Connection.SUSPENDED,
    KazooState.LOST: Connection.LOST,
}


@dataclass(frozen=True, kw_only=True)
class ZooKeeperSettings:
    """How to reach ZooKeeper. `user` and `password`: digest authentication; nodes are then readable and
    writable by this user alone.
    """

    hosts: str
    session_seconds: float = 10.0
    user: str = ""
    password: str = ""
    tls: bool = False
    tls_ca: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None

    def __post_init__(self) -> None:
        if not self.hosts.strip():
            raise DefinitionError("no ZooKeeper was given; say where it is: --zookeeper HOST:2181")
        if not 0.5 <= self.session_seconds <= 600:
            raise DefinitionError(
                f"a session time-out of {self.session_seconds:g} s is out of range; choose 500ms to 10m"
            )


@dataclass(frozen=True, slots=True)
class Found:
    """A node's content. `owner`: the session that an ephemeral node belongs to, else 0; times by ZooKeeper's
    clock.
    """

    data: bytes
    owner: int
    created_ms: int
    changed_ms: int


class _GrantedTimeout(logging.Logger):
    """Reads from kazoo's log, the only place that tells it, which session time-out the server granted."""

    def __init__(self) -> None:
        super().__init__("holdfast.kazoo", level=1)
        self.seconds: float | None = None

    def log(self, level: int, msg: object, *args: object, **_: Any) -> None:
        if str(msg).startswith("Session created") and len(args) > 2 and isinstance(args[2], int):
            self.seconds = args[2] / 1_000

    def handle(self, record: logging.LogRecord) -> None:
        pass


class ZooKeeper:
    """A connection that is kept up until `close`."""

    def __init__(
        self, settings: ZooKeeperSettings, on_change: Callable[[Connection], None], clock: Clock
    ) -> None:
        self._settings, self._on_change, self._clock = settings, on_change, clock
        self._granted = _GrantedTimeout()
        self._acl: list[ACL] | None = None
        if settings.user:
            self._acl = [make_digest_acl(settings.user, settings.password, all=True)]
        self._client = self._made()
        self._client.add_listener(self._changed)

    def connect(self, seconds: float = CONNECT_SECONDS) -> None:
        """Begin the first session. RetryableError: no server answers."""
        try:
            with warnings.catch_warnings():
                # kazoo warns of a path that is not there; `create_open` refuses it.
                warnings.simplefilter("ignore")
                self._client.start(timeout=seconds)
        except KazooTimeoutError as cause:
            _shut(self._client)
            how = "the certificates" if self._settings.tls else "whether it wants TLS"
            raise RetryableError(
                f"ZooKeeper at {self._settings.hosts} did not answer within {seconds:g} s; "
                f"check the address, whether it runs, and {how}"
            ) from cause
        except AuthFailedError as cause:
            _shut(self._client)
            raise _refused(self._settings, self._settings.hosts) from cause

    def close(self) -> None:
        """End the session: its ephemeral nodes go at once."""
        with suppress(Exception):
            self._client.remove_listener(self._changed)
        _shut(self._client)

    def replace_session(self) -> bool:
        """After a long silence: begin another session if the servers take one while they refuse the old.

        A server that has lost its data refuses, without a word, every session that has seen more than it
        knows, and kazoo would try without end. False: the old one is back, or no server answers.
        """
        fresh = self._made()
        try:
            fresh.start(timeout=CALL_SECONDS)
        except (KazooTimeoutError, KazooException):
            _shut(fresh)
            return False
        give_up = self._clock.monotonic() + GRACE_SECONDS
        while not self.connected and self._clock.monotonic() < give_up:
            self._clock.sleep(0.05)
        if self.connected:
            _shut(fresh)
            return False
        old, self._client = self._client, fresh
        old.remove_listener(self._changed)
        _shut(old)
        self._on_change(Connection.LOST)
        fresh.add_listener(self._changed)
        self._on_change(Connection.CONNECTED)
        return True

    @property
    def session(self) -> int:
        """The number of the session; 0: there is none at the moment."""
        given = self._client.client_id
        return int(given[0]) if given is not None else 0

    @property
    def session_seconds(self) -> float:
        """The session time-out that the server granted."""
        return self._granted.seconds or self._settings.session_seconds

    @property
    def connected(self) -> bool:
        return bool(self._client.connected)

    def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> bool:
        """Create a node whose parent is there; False: it exists already."""
        try:
            with self._telling(path):
                self._client.create_async(path, data, acl=self._acl, ephemeral=ephemeral).get(
                    timeout=CALL_SECONDS
                )
        except NodeExistsError:
            return False
        except NoNodeError as cause:
            raise RetryableError(
                f"{path} cannot be created in ZooKeeper, its parent is gone; try again"
            ) from cause
        return True

    def create_open(self, path: str) -> None:
        """Create a node that every user may add to, if it is not there."""
        try:
            with self._telling(path), suppress(NodeExistsError):
                self._client.create_async(path, b"").get(timeout=CALL_SECONDS)
        except NoNodeError as cause:
            raise DefinitionError(
                f"the path in {self._settings.hosts} is not there in ZooKeeper; create it, or leave it out"
            ) from cause

    def read(self, path: str) -> Found | None:
        """A node's content, or None."""
        try:
            with self._telling(path):
                data, stat = self._client.get_async(path).get(timeout=CALL_SECONDS)
        except NoNodeError:
            return None
        return Found(data, stat.ephemeralOwner, stat.ctime, stat.mtime)

    def children(self, path: str, watch: Watch | None = None) -> list[str] | None:
        """The names below a node, or None where there is no such node. `watch` is called once, when they next
        change.
        """
        try:
            with self._telling(path):
                told = None if watch is None else lambda event: watch()
                found = self._client.get_children_async(path, watch=told).get(timeout=CALL_SECONDS)
        except NoNodeError:
            return None
        return sorted(found)

    def write(self, path: str, data: bytes) -> bool:
        """Replace a node's content; False: there is no such node."""
        try:
            with self._telling(path):
                self._client.set_async(path, data).get(timeout=CALL_SECONDS)
        except NoNodeError:
            return False
        return True

    def write_soon(self, path: str, data: bytes, done: Callable[[], object]) -> None:
        """Replace a node's content without waiting; `done` is called when the server has said that it did."""

        def answered(result: Any) -> None:
            if result.successful():
                done()

        with self._telling(path):
            self._client.set_async(path, data).rawlink(answered)

    def delete(self, path: str) -> None:
        """Remove a node, if it is there and has nothing below it."""
        with self._telling(path), suppress(NoNodeError, NotEmptyError):
            self._client.delete_async(path).get(timeout=CALL_SECONDS)

    def _made(self) -> KazooClient:
        settings = self._settings
        return KazooClient(
            hosts=_repeated(settings.hosts),
            timeout=settings.session_seconds,
            auth_data=[("digest", f"{settings.user}:{settings.password}")] if settings.user else None,
            connection_retry={"max_tries": -1, "delay": 0.1, "backoff": 2, "max_delay": RETRY_SECONDS_MAX},
            logger=self._granted,
            use_ssl=settings.tls,
            ca=settings.tls_ca,
            certfile=settings.tls_certificate,
            keyfile=settings.tls_key,
            check_hostname=settings.tls and settings.tls_ca is not None,
        )

    def _changed(self, state: str) -> None:
        self._on_change(_CONNECTIONS[state])

    @contextmanager
    def _telling(self, path: str) -> Iterator[None]:
        """kazoo's errors as ours; those that the caller answers go through."""
        try:
            yield
        except (NoNodeError, NodeExistsError, NotEmptyError, HoldfastError):
            raise
        except (NoAuthError, AuthFailedError) as cause:
            raise _refused(self._settings, path) from cause
        except (KazooTimeoutError, ConnectionLoss, SessionExpiredError, KazooException, OSError) as cause:
            what = type(cause).__name__
            raise RetryableError(
                f"ZooKeeper at {self._settings.hosts} did not do what was asked of {path} ({what}); try again"
            ) from cause


def _refused(settings: ZooKeeperSettings, path: str) -> DefinitionError:
    who = f"user {settings.user!r}" if settings.user else "anybody without a password"
    return DefinitionError(
        f"ZooKeeper at {settings.hosts} refuses {path} to {who}; check the user and the password"
    )


def _repeated(hosts: str) -> str:
    """kazoo divides a session's time among the hosts that it is given, so each is given several times."""
    names, slash, path = hosts.partition("/")
    each = names.split(",")
    return ",".join(each * -(-TRIES_PER_SESSION // len(each))) + slash + path


def _shut(client: KazooClient) -> None:
    with suppress(Exception):
        client.stop()
    with suppress(Exception):
        client.close()
