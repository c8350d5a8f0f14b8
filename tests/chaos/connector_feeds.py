"""Systems that a job reads from, and what is sent there all the while: the numbers from 0 on, each once.

Whoever sends does so again where it cannot know that the system has taken a number, as a careful sender does:
by the key of a row or the id of an entry the system knows it again.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pika
import pika.exceptions
import psycopg
import redis

from tests.chaos.connector_systems import Restartable, System
from tests.services.cable import Cable
from tests.services.line_server import LineServer
from tests.services.servers import PostgresDirectory, free_port, rabbitmq_server, redis_server

BATCH = 20
PAUSE_SECONDS = 0.1
"""Between batches: the job has something to read in every epoch."""


class FedSystem(System):
    """Numbers are sent from its start until `end_feed`. `fed`: how many, once that is over."""

    def __enter__(self) -> Any:
        self.fed, self._ending = 0, threading.Event()
        super().__enter__()
        self._feeder = threading.Thread(target=self._feed, daemon=True)
        self._feeder.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end_feed()
        super().__exit__()

    def end_feed(self) -> None:
        self._ending.set()
        self._feeder.join()

    def send(self, numbers: Sequence[int]) -> None:
        """Until they are there for good. Raises where that is not known."""
        raise NotImplementedError

    troubles: tuple[type[Exception], ...] = (OSError,)
    """What `send` raises then."""

    def _feed(self) -> None:
        while not self._ending.is_set():
            numbers = range(self.fed, self.fed + BATCH)
            self._insist(partial(self.send, numbers))
            self.fed += BATCH
            time.sleep(PAUSE_SECONDS)

    def _insist(self, act: Callable[[], object]) -> None:
        while True:
            try:
                act()
                return
            except self.troubles:
                time.sleep(PAUSE_SECONDS)


class Table(FedSystem):
    """Rows of a batch come by two transactions, of which the older one commits last."""

    name = "table"
    troubles = (psycopg.Error,)

    def start(self) -> None:
        directory = self._made.enter_context(PostgresDirectory())
        self._server = Restartable(directory.running)
        self._made.callback(lambda: self._server.kill())
        self._url, self.at = directory.url, {"url": self.cabled(self._server.server)}
        with psycopg.connect(self._url, autocommit=True) as db:
            db.execute(
                "CREATE TABLE feed (n bigint PRIMARY KEY, txid xid8 NOT NULL DEFAULT pg_current_xact_id())"
            )
            db.execute("CREATE UNIQUE INDEX ON feed (txid, n)")

    def restart(self) -> None:
        self._server.kill()
        self._server.start()

    def send(self, numbers: Sequence[int]) -> None:
        add = "INSERT INTO feed (n) SELECT unnest(%s::bigint[]) ON CONFLICT (n) DO NOTHING"
        half = len(numbers) // 2
        with psycopg.connect(self._url) as older, psycopg.connect(self._url) as newer:
            older.execute(add, [list(numbers[half:])])
            newer.execute(add, [list(numbers[:half])])
            newer.commit()


class RedisEntries(FedSystem):
    name = "redis-entries"
    troubles = (redis.RedisError,)

    def start(self) -> None:
        self._server = Restartable(partial(redis_server, directory=self.directory(), port=free_port()))
        self._made.callback(lambda: self._server.kill())
        self._client = self._made.enter_context(redis.Redis.from_url(self._server.server.url))
        self.at = {"url": self.cabled(self._server.server)}

    def restart(self) -> None:
        self._server.kill()
        self._server.start()

    def send(self, numbers: Sequence[int]) -> None:
        """The id says which number it is: one that is there already is refused."""
        newest = self._client.xrevrange("feed", count=1)
        there = int(newest[0][0].partition(b"-")[0]) - 1 if newest else -1
        for number in numbers:
            if number > there:
                self._client.xadd("feed", {"n": number}, id=f"{number + 1}-0")


class Queue(FedSystem):
    """Messages whose ids say which numbers they have: the job leaves out those that it was given again."""

    name = "queue"
    troubles = (pika.exceptions.AMQPError, OSError)

    def start(self) -> None:
        self._server = Restartable(partial(rabbitmq_server, directory=self.directory(), port=free_port()))
        self._made.callback(lambda: self._server.kill())
        self.at = {"url": self.cabled(self._server.server)}
        with self._connection() as connection:
            connection.channel().queue_declare("feed", durable=True)

    def restart(self) -> None:
        self._server.kill()
        self._server.start()

    def send(self, numbers: Sequence[int]) -> None:
        with self._connection() as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            for number in numbers:
                properties = pika.BasicProperties(message_id=str(number), delivery_mode=2)
                channel.basic_publish("", "feed", json.dumps({"n": number}).encode(), properties)

    def _connection(self) -> Any:
        return pika.BlockingConnection(pika.URLParameters(self._server.server.url))


class SentLines(FedSystem):
    """A server of our own that sends again what it was not told to be safe."""

    name = "lines"

    def start(self) -> None:
        self._lines: list[str] = []
        self._server = LineServer(self._lines)
        self._made.callback(lambda: self._server.close())
        self.cable = self._made.enter_context(Cable(self._server.port))
        self.at = {"port": self.cable.port}

    def restart(self) -> None:
        self._server.close()
        self.cable.refuse()
        self._server = LineServer(self._lines, port=self._server.port, safe=self._server.safe)
        self.cable.restore()

    def send(self, numbers: Sequence[int]) -> None:
        self._lines.extend(json.dumps({"id": str(number), "n": number}) for number in numbers)
