"""Sinks of real servers that refuse a job which goes on: each stops alone, until a person has mended it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast.connectors.kafka.sink import KafkaSink
from holdfast.connectors.postgres.sink import PostgresSink
from holdfast.errors import DefinitionError, SinkWentBack
from holdfast.runtime.epoch.publisher import Publishing
from tests.services.kafka_broker import KafkaBroker, kafka, topic
from tests.services.servers import Server, postgres_server
from tests.unit.runtime.epoch.test_lane_sinks import World

__all__ = ["kafka", "topic"]


@pytest.fixture(scope="module")
def postgres() -> Iterator[Server]:
    with postgres_server() as server:
        yield server


def going_on(world: World, sink: Any) -> Publishing:
    """The same code leads, on another node or once more."""
    publishing = Publishing(replace(world.leader(sink), goes_on=True), world.view)
    publishing.begin()
    return publishing


def test_rejects_that_are_gone_stop_their_sink_alone(postgres: Server, tmp_path: Path) -> None:
    shop, world = f"shop_{uuid.uuid4().hex[:8]}", World(tmp_path)
    dsn = postgres.url.replace("holdfast@", f"{shop}_writer@")
    sink = PostgresSink(f"{shop}.orders", dsn=dsn, marks=f"{shop}.marks", rejects=f"{shop}.rejects")
    with psycopg.connect(postgres.url, autocommit=True) as db:
        db.execute(f"CREATE ROLE {shop}_writer LOGIN")
        db.execute(f"CREATE SCHEMA {shop}")
        db.execute(f"CREATE TABLE {shop}.orders (n bigint)")
        db.execute(f"GRANT USAGE, CREATE ON SCHEMA {shop} TO {shop}_writer")
        db.execute(f"GRANT SELECT, INSERT ON {shop}.orders TO {shop}_writer")
        world.commit((0, [1]))
        with closing(world.start(sink)) as publishing:
            world.tell(publishing)
        db.execute(f"DROP TABLE {shop}.rejects")
        db.execute(f"REVOKE CREATE ON SCHEMA {shop} FROM {shop}_writer")
        world.commit((0, [2]))
        refused = rf"^sink 'out' cannot begin: .* refuses, making the table of rejects {shop}\.rejects: perm"
        with pytest.raises(DefinitionError, match=refused):
            world.start(sink)
        with closing(going_on(world, sink)) as publishing:
            for _ in range(2):
                with pytest.raises(DefinitionError, match=rf"^sink 'out' cannot begin: .* {shop}\.rejects: "):
                    publishing.show("out", 2, 2, world.view.staged)
            db.execute(f"GRANT CREATE ON SCHEMA {shop} TO {shop}_writer")
            publishing.show("out", 2, 2, world.view.staged)
        found = db.execute(f"SELECT n FROM {shop}.orders ORDER BY n").fetchall()
    assert found == [(1,), (2,)]


def test_a_table_that_was_made_again_stops_its_sink_alone(postgres: Server, tmp_path: Path) -> None:
    name, world = f"orders_{uuid.uuid4().hex[:8]}", World(tmp_path)
    sink = PostgresSink(name, dsn=postgres.url, marks=f"{name}_marks")
    with psycopg.connect(postgres.url, autocommit=True) as db:
        db.execute(f"CREATE TABLE {name} (n bigint)")
        world.commit((0, [1]))
        with closing(world.start(sink)) as publishing:
            world.tell(publishing)
        db.execute(f"DROP TABLE {name}")
        db.execute(f"CREATE TABLE {name} (n bigint)")
        world.commit((0, [2]))
        with pytest.raises(SinkWentBack):
            world.start(sink)
        with closing(going_on(world, sink)) as publishing:
            with pytest.raises(SinkWentBack) as told:
                publishing.show("out", 2, 2, world.view.staged)
            db.execute(str(told.value).rpartition("go on in it with ")[2])
            publishing.show("out", 2, 2, world.view.staged)
        assert db.execute(f"SELECT n FROM {name}").fetchall() == [(2,)]


def test_a_topic_that_was_made_again_stops_its_sink_alone(
    kafka: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    """While a run lasts, and where the job goes on; a start is refused."""
    world, sink = World(tmp_path), KafkaSink(kafka.servers, topic)
    kafka.make(topic)
    world.commit((0, [1]))
    with closing(world.start(sink)) as publishing:
        world.tell(publishing)
        kafka.delete(topic)
        kafka.make(topic)
        world.commit((0, [2]), publishing=publishing)
        for _ in range(2):
            with pytest.raises(DefinitionError, match=r"'out' cannot show epoch 2.* deleted and made again"):
                publishing.show("out", 2, 2, world.view.staged)
    with pytest.raises(SinkWentBack, match="was deleted and made again"):
        world.start(sink)
    with (
        closing(going_on(world, sink)) as publishing,
        pytest.raises(SinkWentBack, match="was deleted and made again"),
    ):
        publishing.show("out", 2, 2, world.view.staged)
    assert kafka.committed(topic) == []
