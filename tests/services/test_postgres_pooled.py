"""Behind a real pgbouncer, and with settings in the dsn: what a session is asked for holds all the same."""

from __future__ import annotations

import signal
import time
import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from holdfast.connectors.lanes import LANES, LaneMark, Outcome
from holdfast.connectors.postgres.sink import PostgresSink
from holdfast.connectors.postgres.table_source import TableSource
from holdfast.errors import DefinitionError
from tests.services.postgres_kit import created, db, postgres
from tests.services.postgres_lanes import SCHEMA, lane_rows, opened, rows_of, shown, stopped_in_copy
from tests.services.servers import Server, pooler

__all__ = ["db", "postgres"]

TWO = rows_of(("anna", 1), ("ben", 2))
TOTALS = '"user" text NOT NULL, total bigint'
EVENTS = "txid xid8 NOT NULL DEFAULT pg_current_xact_id(), part float8"
A_PART = 0.1 + 0.2
"""Seventeen digits tell it from 0.3."""


@pytest.fixture(params=["no pooler", "session", "transaction"])
def url(request: pytest.FixtureRequest, postgres: Server) -> Iterator[str]:
    if request.param == "no pooler":
        yield postgres.url
    else:
        with pooler(postgres, request.param) as url:
            yield url


@pytest.fixture
def shop(db: psycopg.Connection[Any]) -> str:
    """A schema that is in nobody's search_path."""
    name = f"shop_{uuid.uuid4().hex[:8]}"
    db.execute(f"CREATE SCHEMA {name}")
    db.execute(f"CREATE TABLE {name}.totals ({TOTALS})")
    db.execute(f'CREATE UNIQUE INDEX ON {name}.totals ("user")')
    db.execute(f"CREATE TABLE {name}.events ({EVENTS})")
    return name


def parts(dsn: str, table: str) -> list[str]:
    """What a job reads, as text."""
    source = TableSource(table, dsn=dsn, by="txid", schema="part string")
    source.check()
    reader = source.reader([])
    while (slice := reader.next(None, None, 0)) is None:
        time.sleep(0.02)  # its rows are not on disk
    return [text for batch in reader.tasks(slice).all_rows() for text in batch.column("part").to_pylist()]


@pytest.mark.parametrize("how", [{}, {"mode": "upsert", "key": "user"}], ids=["append", "upsert"])
def test_settings_of_the_dsn_hold_in_a_sink(
    postgres: Server, url: str, shop: str, how: dict[str, Any]
) -> None:
    dsn = f"{url}?options=-csearch_path%3D{shop}"
    PostgresSink("totals", dsn=dsn, **how).check_schema(SCHEMA)
    lanes = opened(dsn, "totals", **how)
    for outcome in (Outcome.WRITTEN, Outcome.ALREADY):
        assert lanes.write(lane_rows(TWO)).outcome is outcome
    assert lanes.marks()[0] == LaneMark(1, 2)
    assert len(shown(postgres.url, f"{shop}.totals")) == 2
    assert len(shown(postgres.url, f"{shop}.holdfast_marks")) == LANES


def test_settings_of_the_dsn_hold_in_a_source(db: psycopg.Connection[Any], url: str, shop: str) -> None:
    db.execute(f"INSERT INTO {shop}.events (part) VALUES (%s)", [A_PART])
    assert parts(f"{url}?options=-csearch_path%3D{shop}", "events") == [str(A_PART)]


def test_a_client_that_was_stopped_inside_copy_is_ended_by_a_newer_term(
    postgres: Server, db: psycopg.Connection[Any], url: str
) -> None:
    table = created(db, TOTALS)
    newer = PostgresSink(table, dsn=url).lane_writer("job", "out").open(2)
    newer.begin(0)
    other = stopped_in_copy(url, table)
    try:
        assert newer.write(lane_rows(TWO, term=2)).outcome is Outcome.WRITTEN
    finally:
        other.send_signal(signal.SIGCONT)
        assert other.communicate(timeout=60)[0] == "UNAVAILABLE\n"
        db.execute("DELETE FROM holdfast_marks WHERE uid = 'out'")
    assert shown(postgres.url, table) == [("anna", 1), ("ben", 2)]


def test_what_others_leave_in_a_session_of_the_pool_does_not_count(
    postgres: Server, db: psycopg.Connection[Any]
) -> None:
    """And nothing of ours is left there."""
    names = ("synchronous_commit", "lock_timeout", "transaction_isolation")
    found = ", ".join(f"current_setting('{name}')" for name in names)
    table = created(db, f"{TOTALS}, written text DEFAULT concat_ws(' ', {found})")
    events = created(db, EVENTS, "events")
    db.execute(f"INSERT INTO {events} (part) VALUES (%s)", [A_PART])
    with (
        pooler(postgres, "transaction", size=1) as url,
        psycopg.connect(url, autocommit=True) as other,
    ):
        for setting in (
            "synchronous_commit = off",
            "extra_float_digits = -10",
            "default_transaction_isolation = serializable",
        ):
            other.execute(f"SET {setting}")
        assert opened(url, table).write(lane_rows(rows_of(("anna", 1)))).outcome is Outcome.WRITTEN
        assert shown(postgres.url, table) == [("anna", 1, "on 2s read committed")]
        assert parts(url, events) == [str(A_PART)]
        assert other.execute(f"SELECT {found}").fetchone() == ("off", "0", "serializable")


def test_a_pooler_of_statements_is_refused(postgres: Server, db: psycopg.Connection[Any]) -> None:
    table = created(db, TOTALS)
    told = "pooler in front of Postgres at .* refuses: .*; let it pool sessions or transactions"
    with pooler(postgres, "statement") as url:
        with pytest.raises(DefinitionError, match=told):
            PostgresSink(table, dsn=url).check_schema(SCHEMA)
        with pytest.raises(DefinitionError, match=told):
            TableSource(table, dsn=url, by="txid", schema="n int").check()
        result = PostgresSink(table, dsn=url).lane_writer("job", table).open(1).write(lane_rows(TWO))
        assert result.outcome is Outcome.REFUSED


def test_a_pooler_that_refuses_settings_of_the_environment_is_told_from_one_that_is_away(
    postgres: Server, db: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGOPTIONS", "-c search_path=shop")
    told = "unsupported startup parameter.*; put these settings into options= of the dsn"
    with pooler(postgres, "session") as url, pytest.raises(DefinitionError, match=told):
        PostgresSink("totals", dsn=url).check_schema(SCHEMA)
