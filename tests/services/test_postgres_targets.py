"""What a sink in Postgres is refused for before anything is planned, against a real server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from holdfast.connectors.postgres.sink import PostgresSink
from holdfast.errors import DefinitionError
from holdfast.secret import Secret
from tests.services.postgres_lanes import SCHEMA
from tests.services.servers import PostgresDirectory, Server


@pytest.fixture(scope="module")
def postgres() -> Iterator[Server]:
    directory = PostgresDirectory(guests=["guest"])
    with directory, directory.running() as server:
        yield server


REFUSALS: dict[str, tuple[str, dict[str, Any], pa.Schema]] = {
    "there is no table nowhere": ("nowhere", {}, SCHEMA),
    "has no column 'more'": ("good", {}, SCHEMA.append(pa.field("more", pa.string()))),
    "which column 'total' of table good (integer) does not take": ("narrow", {}, SCHEMA),
    "needs a value for 'must'": ("needy", {}, SCHEMA),
    "lacks rights on table closed: INSERT": ("closed", {}, SCHEMA),
    "lacks rights on table added: UPDATE": ("added", {"mode": "upsert", "key": "user"}, SCHEMA),
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
            'CREATE TABLE added ("user" text PRIMARY KEY, total bigint)',
            "CREATE VIEW seen AS SELECT * FROM good",
            'CREATE TABLE secured ("user" text, total bigint)',
            "ALTER TABLE secured ENABLE ROW LEVEL SECURITY",
            "CREATE TABLE numbered (holdfast_row bigint PRIMARY KEY)",
            "GRANT SELECT, INSERT ON good, narrow, needy, added, seen, secured, numbered TO guest",
            "GRANT UPDATE ON good, numbered TO guest",
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
        db.execute("REVOKE TEMP ON DATABASE postgres FROM PUBLIC")
        sink = PostgresSink(
            "staged", dsn=postgres.url.replace("holdfast@", "plain@"), mode="upsert", key="user"
        )
        with pytest.raises(DefinitionError, match="GRANT TEMPORARY ON DATABASE"):
            sink.check_schema(SCHEMA)
        db.execute("GRANT TEMP ON DATABASE postgres TO PUBLIC")
        sink.check_schema(SCHEMA)


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
