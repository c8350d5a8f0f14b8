"""The tables that a Postgres sink needs for itself, and what its user must be allowed at them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from holdfast.connectors.lanes import Outcome
from holdfast.connectors.postgres.sink import PostgresSink
from holdfast.errors import DefinitionError
from holdfast.secret import Secret
from tests.services.postgres_lanes import SCHEMA, lane_rows, rows_of
from tests.services.servers import PostgresDirectory, Server


@pytest.fixture(scope="module")
def postgres() -> Iterator[Server]:
    directory = PostgresDirectory(guests=["guest"])
    with directory, directory.running() as server:
        yield server


REFUSALS: dict[str, tuple[str, dict[str, Any], pa.Schema]] = {
    "may not make it; GRANT CREATE ON SCHEMA public TO guest": ("good", {"marks": "no_marks"}, SCHEMA),
    "lacks INSERT, UPDATE on table read_marks": ("good", {"marks": "read_marks"}, SCHEMA),
    "no table no_rejects": ("good", {"marks": "own_marks", "rejects": "no_rejects"}, SCHEMA),
}


@pytest.fixture(scope="module")
def tables(postgres: Server) -> Server:
    with psycopg.connect(postgres.url, autocommit=True) as db:
        for statement in (
            'CREATE TABLE good ("user" text, total bigint)',
            'CREATE TABLE narrow ("user" text, total int)',
            'CREATE TABLE needy ("user" text, total bigint, must int NOT NULL)',
            'CREATE TABLE closed ("user" text, total bigint)',
            "CREATE ROLE guest LOGIN PASSWORD 'right'",
            'CREATE TABLE keyed ("user" text PRIMARY KEY, total bigint)',
            "CREATE TABLE read_marks (LIKE good)",
            "CREATE TABLE own_marks (LIKE good)",
            "REVOKE CREATE ON SCHEMA public FROM public",
            "GRANT SELECT, INSERT ON good, narrow, needy, keyed TO guest",
            "GRANT UPDATE ON good TO guest",
            "GRANT SELECT ON read_marks TO guest",
            "GRANT ALL ON own_marks TO guest",
        ):
            db.execute(statement)
    return postgres


@pytest.mark.parametrize("told", REFUSALS)
def test_a_table_that_cannot_take_the_rows_is_refused_in_one_line_before_anything_is_planned(
    tables: Server, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WRONG_PASSWORD", "not-this-one")
    monkeypatch.setenv("RIGHT_PASSWORD", "right")
    name, changes, schema = REFUSALS[told]
    how = {"password": Secret.env("RIGHT_PASSWORD"), **changes}
    with pytest.raises(DefinitionError) as refused:
        PostgresSink(name, dsn=tables.url.replace("holdfast@", "guest@"), **how).check_schema(schema)
    assert told.replace("table good (integer)", "table narrow (integer)") in str(refused.value)
    assert "; " in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "not-this-one" not in str(refused.value)


def test_a_user_who_may_make_no_tables_writes_where_marks_and_rejects_are_there(postgres: Server) -> None:
    table = f"totals_{uuid.uuid4().hex[:8]}"
    own = {"marks": f"{table}_marks", "rejects": f"{table}_rejects"}
    dsn = postgres.url.replace("holdfast@", f"{table}_writer@")
    with psycopg.connect(postgres.url, autocommit=True) as db:
        db.execute(f'CREATE TABLE {table} ("user" text, total bigint)')
        PostgresSink(table, dsn=postgres.url, **own).lane_writer("job", table).open(1).begin(0)
        db.execute("REVOKE CREATE ON SCHEMA public FROM public")
        db.execute(f"CREATE ROLE {table}_writer LOGIN")
        db.execute(f"GRANT INSERT ON {table}, {table}_rejects TO {table}_writer")
        db.execute(f"GRANT SELECT, INSERT, UPDATE ON {table}_marks TO {table}_writer")
    sink = PostgresSink(table, dsn=dsn, **own)
    sink.check_schema(SCHEMA)
    lanes = sink.lane_writer("job", table).open(1)
    lanes.begin(0)
    assert lanes.write(lane_rows(rows_of(("anna", 1), ("ben", 2)))).outcome is Outcome.WRITTEN
