"""Rows that take the place of others, in a real Postgres."""

from __future__ import annotations

import random
import threading
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from holdfast.connectors.lanes import LaneMark, Outcome
from holdfast.connectors.postgres.lane_writer import OpenPostgresLanes
from holdfast.connectors.postgres.sink import PostgresSink
from tests.services.postgres_kit import created, db, postgres
from tests.services.postgres_lanes import SCHEMA, lane_rows, opened, rows_of, shown
from tests.services.servers import Server

__all__ = ["db", "postgres"]

WITH_GONE = SCHEMA.append(pa.field("gone", pa.bool_()))


@pytest.fixture
def table(db: psycopg.Connection[Any]) -> str:
    name = created(db, '"user" text PRIMARY KEY, total bigint, touched bool DEFAULT true', "latest")
    db.execute(f"ALTER TABLE {name} DROP COLUMN touched")
    return name


def upserting(url: str, table: str, **how: Any) -> Any:
    return opened(url, table, mode="upsert", key="user", **how)


def test_the_last_row_of_a_key_counts_in_a_lane_and_over_epochs(postgres: Server, table: str) -> None:
    lanes = upserting(postgres.url, table)
    first = rows_of(("anna", 1), ("ben", 2), ("anna", 3))
    assert lanes.write(lane_rows(first)).outcome is Outcome.WRITTEN
    assert shown(postgres.url, table) == [("anna", 3), ("ben", 2)]
    second = lane_rows(rows_of(("ben", 7)), 2, lane=5)
    assert lanes.write(second).outcome is Outcome.WRITTEN, "a key may change its lane between epochs"
    assert lanes.write(lane_rows(first)).outcome is Outcome.ALREADY, "a late twin takes nothing back"
    assert shown(postgres.url, table) == [("anna", 3), ("ben", 7)]


def test_deleted_rows_go_and_may_come_again(postgres: Server, table: str) -> None:
    lanes = upserting(postgres.url, table, deleted="gone")
    PostgresSink(table, dsn=postgres.url, mode="upsert", key="user", deleted="gone").check_schema(WITH_GONE)

    def write(epoch: int, *rows: tuple[Any, ...]) -> None:
        given = lane_rows(rows_of(*rows, schema=WITH_GONE), epoch, before=LaneMark(epoch - 1))
        assert lanes.write(given).outcome is Outcome.WRITTEN

    write(1, ("anna", 1, False), ("ben", 2, None), ("nobody", 0, True))
    assert shown(postgres.url, table) == [("anna", 1), ("ben", 2)]
    write(2, ("anna", 5, False), ("anna", None, True), ("ben", None, True), ("ben", 6, False))
    assert shown(postgres.url, table) == [("ben", 6)]
    write(3, ("anna", 8, False))
    assert shown(postgres.url, table) == [("anna", 8), ("ben", 6)]


def test_with_an_order_the_highest_counts_whichever_lane_comes_first(postgres: Server, table: str) -> None:
    lanes = upserting(postgres.url, table, order_by="total")
    assert lanes.write(lane_rows(rows_of(("anna", 5), ("anna", 9), ("anna", 7)))).outcome is Outcome.WRITTEN
    assert lanes.write(lane_rows(rows_of(("anna", 8), ("ben", 1)), lane=1)).outcome is Outcome.WRITTEN
    assert shown(postgres.url, table) == [("anna", 9), ("ben", 1)]


def test_a_refused_row_does_not_take_the_others_with_it(postgres: Server, table: str) -> None:
    lanes = upserting(postgres.url, table, rejects=f"{table}_rejects")
    rows = rows_of(("anna", 1), ("b\0d", 2), ("ben", 3), ("anna", 4))
    done = lanes.write(lane_rows(rows))
    assert (done.outcome, done.rejected) == (Outcome.WRITTEN, 1)
    assert shown(postgres.url, table) == [("anna", 4), ("ben", 3)]


def test_lanes_with_the_same_keys_at_once_all_come_to_an_end(postgres: Server, table: str) -> None:
    keys = [f"user {n}" for n in range(300)]
    failures: list[Any] = []

    def write(lane: int) -> None:
        order, lanes = random.Random(lane), upserting(postgres.url, table, order_by="total")
        for epoch in range(1, 6):
            mixed = order.sample(keys, len(keys))
            rows = rows_of(*((key, epoch * 100 + lane) for key in mixed))
            given = lane_rows(rows, epoch, lane=lane, before=LaneMark(epoch - 1))
            while (result := lanes.write(given)).outcome is Outcome.BUSY:
                continue
            if result.outcome is not Outcome.WRITTEN:
                failures.append(result)

    writers = [threading.Thread(target=write, args=(lane,)) for lane in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert not failures
    assert shown(postgres.url, table) == sorted((key, 503) for key in keys)


def test_a_deadlock_with_somebody_else_is_tried_again(
    postgres: Server, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, met = OpenPostgresLanes._write, list[int]()

    def once(self: OpenPostgresLanes, *given: Any) -> Any:
        if not met:
            met.append(1)
            raise psycopg.errors.DeadlockDetected("deadlock detected")
        return real(self, *given)

    monkeypatch.setattr(OpenPostgresLanes, "_write", once)
    written = upserting(postgres.url, table).write(lane_rows(rows_of(("anna", 1))))
    assert (written.outcome, met) == (Outcome.WRITTEN, [1])
