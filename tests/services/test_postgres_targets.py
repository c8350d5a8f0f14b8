"""What a sink in Postgres is refused for before anything is planned, against a real server."""

from __future__ import annotations

import uuid
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from holdfast.connectors.lanes import Outcome
from holdfast.connectors.postgres.sink import PostgresSink
from holdfast.errors import DefinitionError
from holdfast.secret import Secret
from tests.services.postgres_kit import postgres
from tests.services.postgres_lanes import SCHEMA, lane_rows, rows_of
from tests.services.servers import Server

__all__ = ["postgres"]


REFUSALS: dict[str, tuple[str, dict[str, Any], pa.Schema]] = {
    "there is no table nowhere": ("nowhere", {}, SCHEMA),
    "has no column 'more'": ("good", {}, SCHEMA.append(pa.field("more", pa.string()))),
    "which column 'total' of table good (integer) does not take": ("narrow", {}, SCHEMA),
    "needs a value for 'must'": ("needy", {}, SCHEMA),
    "lacks INSERT on table closed": ("closed", {}, SCHEMA),
    'lacks UPDATE, DELETE on table keyed; GRANT SELECT, INSERT, UPDATE, DELETE ON "keyed" TO "guest"': (
        "keyed",
        {"mode": "upsert", "key": "user", "deleted": "gone"},
        SCHEMA.append(pa.field("gone", pa.bool_())),
    ),
    "lacks INSERT on table by_columns": ("by_columns", {}, SCHEMA),
    "may not make it; GRANT CREATE ON SCHEMA public TO guest": ("good", {"marks": "no_marks"}, SCHEMA),
    "lacks INSERT, UPDATE on table read_marks": ("good", {"marks": "read_marks"}, SCHEMA),
    "no table no_rejects": ("good", {"marks": "own_marks", "rejects": "no_rejects"}, SCHEMA),
    "table seen is a view": ("seen", {}, SCHEMA),
    "table secured has row-level security": ("secured", {}, SCHEMA),
    "have a column 'holdfast_row'": (
        "numbered",
        {"mode": "upsert", "key": "holdfast_row"},
        pa.schema([("holdfast_row", pa.int64())]),
    ),
    'has no unique index on ("user")': ("good", {"mode": "upsert", "key": "user"}, SCHEMA),
    "password authentication failed": ("good", {"password": Secret.env("WRONG_PASSWORD")}, SCHEMA),
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
            'CREATE TABLE by_columns ("user" text, total bigint)',
            "CREATE TABLE read_marks (LIKE good)",
            "CREATE TABLE own_marks (LIKE good)",
            "REVOKE CREATE ON SCHEMA public FROM public",
            "CREATE VIEW seen AS SELECT * FROM good",
            'CREATE TABLE secured ("user" text, total bigint)',
            "ALTER TABLE secured ENABLE ROW LEVEL SECURITY",
            "CREATE TABLE numbered (holdfast_row bigint PRIMARY KEY)",
            "GRANT SELECT, INSERT ON good, narrow, needy, keyed, seen, secured, numbered TO guest",
            "GRANT UPDATE ON good, numbered TO guest",
            'GRANT INSERT ("user", total) ON by_columns TO guest',
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


def test_an_upsert_without_the_right_to_temporary_tables_is_refused_before_anything_is_planned(
    postgres: Server,
) -> None:
    with psycopg.connect(postgres.url, autocommit=True) as db:
        db.execute('CREATE TABLE staged ("user" text PRIMARY KEY, total bigint)')
        db.execute("CREATE ROLE plain LOGIN")
        db.execute("GRANT ALL ON staged TO plain")
        db.execute("GRANT CREATE ON SCHEMA public TO plain")
        db.execute("REVOKE TEMP ON DATABASE postgres FROM PUBLIC")
        sink = PostgresSink(
            "staged", dsn=postgres.url.replace("holdfast@", "plain@"), mode="upsert", key="user"
        )
        with pytest.raises(DefinitionError, match="GRANT TEMPORARY ON DATABASE"):
            sink.check_schema(SCHEMA)
        db.execute("GRANT TEMP ON DATABASE postgres TO PUBLIC")
        sink.check_schema(SCHEMA)


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


def test_what_does_not_go_together_is_refused() -> None:
    for how in (
        {"marks": "t"},
        {"rejects": "t"},
        {"rejects": "holdfast_marks"},
        {"mode": "replace"},
        {"mode": "upsert"},
        {"key": "user"},
        {"mode": "upsert", "key": "user", "order_by": "total", "deleted": "gone"},
    ):
        with pytest.raises(DefinitionError):
            PostgresSink("t", dsn="postgresql://127.0.0.1/x", **how)  # type: ignore[arg-type]
