"""Marks outlive the table whose rows they tell of: another one of its name is no place to go on in."""

from __future__ import annotations

import subprocess
import uuid
from typing import Any

import psycopg
import pytest

from holdfast.connectors.lanes import LaneMark, Outcome
from holdfast.connectors.postgres import lane_writer
from holdfast.connectors.postgres.lane_writer import OpenPostgresLanes
from holdfast.connectors.postgres.sink import PostgresSink
from holdfast.errors import SinkWentBack, one_line
from tests.services.postgres_kit import created, db, postgres
from tests.services.postgres_lanes import lane_rows, rows_of, shown
from tests.services.servers import Server, program

__all__ = ["db", "postgres"]

TWO = rows_of(("anna", 1), ("ben", 2))
MORE = rows_of(("cleo", 3))
NEXT = lane_rows(MORE, 8, before=LaneMark(7, 2))
UID = "anna's"
COLUMNS = '"user" text PRIMARY KEY, total bigint'
MADE = f"({COLUMNS})"
FORMER_MARKS = """
    CREATE TABLE {0}_marks (job text, uid text, lane int, epoch bigint NOT NULL, rows bigint NOT NULL,
                            input text NOT NULL, written timestamptz NOT NULL DEFAULT now(),
                            PRIMARY KEY (job, uid, lane))
"""


@pytest.fixture
def table(db: psycopg.Connection[Any]) -> str:
    return created(db, COLUMNS)


def opened(url: str, table: str, marks: str = "", **how: Any) -> OpenPostgresLanes:
    sink = PostgresSink(table, dsn=url, marks=marks or f"{table}_marks", **how)
    return sink.lane_writer("job", UID).open(1)


def begun(url: str, table: str, **how: Any) -> OpenPostgresLanes:
    """Epoch 7 is shown, by a lane."""
    lanes = opened(url, table, **how)
    lanes.begin(6)
    assert lanes.write(lane_rows(TWO, 7, before=LaneMark(6))).outcome is Outcome.WRITTEN
    return lanes


def refused(lanes: OpenPostgresLanes) -> str:
    """Why the marks do not count."""
    with pytest.raises(SinkWentBack) as why:
        lanes.marks()
    return one_line(why.value)


@pytest.mark.parametrize("how", [{}, {"mode": "upsert", "key": "user"}])
def test_a_table_that_was_made_again_between_two_runs_is_a_sink_that_went_back(
    postgres: Server, db: psycopg.Connection[Any], table: str, how: dict[str, Any]
) -> None:
    begun(postgres.url, table, **how).close()
    db.execute(f"DROP TABLE {table}")
    db.execute(f"CREATE TABLE {table} {MADE}")
    lanes = opened(postgres.url, table, **how)
    lanes.begin(6)
    why = refused(lanes)
    assert f"table {table} of Postgres at 127.0.0.1" in why
    assert f'sink "{UID}" had shown the rows of epochs up to 7: that one is gone' in why
    assert f"UPDATE public.{table}_marks SET table_oid = NULL" in why, "whatever the search_path is"
    for lane, before in ((0, LaneMark(7, 2)), (1, LaneMark(6))):
        result = lanes.write(lane_rows(MORE, 8, lane=lane, before=before))
        assert result.outcome is Outcome.REFUSED
        assert result.reason == why
    assert shown(postgres.url, table) == []
    db.execute(why.rpartition("go on in it with ")[2])
    assert lanes.marks()[0] == LaneMark(7, 2)
    assert lanes.write(NEXT).outcome is Outcome.WRITTEN
    assert shown(postgres.url, table) == [("cleo", 3)]


def test_a_table_that_was_made_again_while_it_is_written_is_noticed_by_the_next_rows(
    postgres: Server, db: psycopg.Connection[Any], table: str
) -> None:
    lanes = begun(postgres.url, table)
    db.execute(f"DROP TABLE {table}")
    assert lanes.write(NEXT).outcome is Outcome.REFUSED, "there is none"
    db.execute(f"CREATE TABLE {table} {MADE}")
    result = lanes.write(NEXT)
    assert result.outcome is Outcome.REFUSED
    assert shown(postgres.url, table) == []
    db.execute(result.reason.rpartition("go on in it with ")[2])
    assert lanes.write(NEXT).outcome is Outcome.WRITTEN, "as the refusal says"


@pytest.mark.parametrize("how", [{}, {"mode": "upsert", "key": "user"}])
def test_a_name_that_goes_to_another_table_while_rows_are_written_takes_none_of_them(
    postgres: Server, db: psycopg.Connection[Any], how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A schema can be renamed while a table in it is locked."""
    shop = f"shop_{uuid.uuid4().hex[:8]}"
    for schema in (shop, f"{shop}_next"):
        db.execute(f"CREATE SCHEMA {schema}")
        db.execute(f"CREATE TABLE {schema}.orders {MADE}")
    lanes = opened(postgres.url, f"{shop}.orders", f"{shop}_marks", **how)
    lanes.begin(7)
    put = lane_writer._Prepared.put

    def swapping(self: Any, *given: Any) -> None:
        db.execute(f"ALTER SCHEMA {shop} RENAME TO {shop}_former")
        db.execute(f"ALTER SCHEMA {shop}_next RENAME TO {shop}")
        put(self, *given)

    with monkeypatch.context() as patched:
        patched.setattr(lane_writer._Prepared, "put", swapping)
        assert lanes.write(lane_rows(MORE, 8, before=LaneMark(7))).outcome is Outcome.BUSY
    for schema in (shop, f"{shop}_former"):
        assert shown(postgres.url, f"{schema}.orders") == []
    assert lanes.marks()[0] == LaneMark(7)


def test_a_schema_that_may_not_be_looked_into_is_met_by_what_writes_there(
    postgres: Server, db: psycopg.Connection[Any]
) -> None:
    shop = f"shop_{uuid.uuid4().hex[:8]}"
    db.execute(f"CREATE SCHEMA {shop}")
    db.execute(f"CREATE TABLE {shop}.orders {MADE}")
    begun(postgres.url, f"{shop}.orders", marks=f"{shop}_marks").close()
    db.execute(f"CREATE ROLE {shop} LOGIN")
    db.execute(f"GRANT ALL ON {shop}_marks TO {shop}")
    lanes = opened(f"{postgres.url}?user={shop}", f"{shop}.orders", f"{shop}_marks")
    assert lanes.marks()[0] == LaneMark(7, 2)
    assert lanes.write(NEXT).outcome is Outcome.REFUSED


def test_marks_of_an_older_version_that_someone_holds_do_not_hold_up_the_start(
    postgres: Server, db: psycopg.Connection[Any], table: str
) -> None:
    begun(postgres.url, table).close()
    db.execute(f"ALTER TABLE {table}_marks DROP COLUMN table_oid")
    with psycopg.connect(postgres.url) as dump:
        dump.execute(f"LOCK TABLE {table}_marks IN ACCESS SHARE MODE")
        lanes = opened(postgres.url, table)
        lanes.begin(7)
        assert lanes.marks()[0] == LaneMark(7, 2)
    assert lanes.write(NEXT).outcome is Outcome.WRITTEN


def test_a_table_that_took_the_name_of_another_is_told_from_one_that_was_dropped(
    postgres: Server, db: psycopg.Connection[Any], table: str
) -> None:
    lanes = begun(postgres.url, table)
    db.execute(f"ALTER TABLE {table} RENAME TO {table}_former")
    db.execute(f"CREATE TABLE {table} {MADE}")
    assert f"that one is {table}_former now" in refused(lanes)
    followed = opened(postgres.url, f"{table}_former", f"{table}_marks")
    assert followed.write(NEXT).outcome is Outcome.WRITTEN, "a new name is the same table"
    assert len(shown(postgres.url, f"{table}_former")) == 3


def test_a_table_that_is_rotated_by_its_name_goes_on_in_the_next_one(
    postgres: Server, db: psycopg.Connection[Any], table: str
) -> None:
    lanes = begun(postgres.url, table)
    with db.transaction():
        db.execute(f"UPDATE {table}_marks SET table_oid = NULL WHERE job = 'job' AND uid = %s", [UID])
        db.execute(f"ALTER TABLE {table} RENAME TO {table}_former")
        db.execute(f"CREATE TABLE {table} {MADE}")
    assert lanes.write(NEXT).outcome is Outcome.WRITTEN
    assert shown(postgres.url, table) == [("cleo", 3)]
    assert len(shown(postgres.url, f"{table}_former")) == 2


def test_a_table_that_was_made_again_before_anything_was_shown_is_as_good(
    postgres: Server, db: psycopg.Connection[Any], table: str
) -> None:
    lanes = opened(postgres.url, table)
    lanes.begin(7)
    db.execute(f"DROP TABLE {table}")
    db.execute(f"CREATE TABLE {table} {MADE}")
    assert lanes.marks()[0] == LaneMark(7)
    assert lanes.write(lane_rows(MORE, 8, before=LaneMark(7))).outcome is Outcome.WRITTEN


@pytest.mark.parametrize(
    "done", ["VACUUM FULL {0}", "TRUNCATE {0}", "ALTER TABLE {0} ADD more text",
             "ALTER TABLE {0} SET SCHEMA s",
             "ALTER TABLE {0} ALTER total TYPE numeric; ALTER TABLE {0} ALTER total TYPE bigint"],
)  # fmt: skip
def test_a_table_that_was_written_anew_is_the_same(
    postgres: Server, db: psycopg.Connection[Any], table: str, done: str
) -> None:
    db.execute("CREATE SCHEMA IF NOT EXISTS s")
    begun(postgres.url, table).close()
    db.execute(done.format(table))
    name = f"s.{table}" if "SCHEMA" in done else table
    lanes = opened(postgres.url, name, f"{table}_marks")
    assert lanes.marks()[0] == LaneMark(7, 2)
    assert lanes.write(NEXT).outcome is Outcome.WRITTEN
    assert lanes.marks()[0] == LaneMark(8, 1)


def test_partitions_come_and_go(postgres: Server, db: psycopg.Connection[Any], table: str) -> None:
    name = f"{table}_parted"
    db.execute(f'CREATE TABLE {name} ("user" text, total bigint) PARTITION BY RANGE (total)')
    db.execute(f"CREATE TABLE {name}_low PARTITION OF {name} FOR VALUES FROM (0) TO (3)")
    lanes = begun(postgres.url, name)
    db.execute(f"CREATE TABLE {name}_high PARTITION OF {name} FOR VALUES FROM (3) TO (9)")
    db.execute(f"DROP TABLE {name}_low")
    assert lanes.write(NEXT).outcome is Outcome.WRITTEN
    assert lanes.marks()[0] == LaneMark(8, 1)


def test_a_restored_dump_goes_on_when_a_person_says_so(
    postgres: Server, db: psycopg.Connection[Any], table: str
) -> None:
    """Its tables have numbers of their own, and the marks those of the database that was dumped."""
    begun(postgres.url, table).close()
    db.execute(f"CREATE DATABASE {table}")
    dump = program("pg_dump", "postgresql", "/usr/lib/postgresql/*/bin")
    found = subprocess.run(
        [dump, "--inserts", "-t", f"{table}*", postgres.url], check=True, capture_output=True, text=True
    )
    restored = postgres.url.replace("/postgres", f"/{table}")
    with psycopg.connect(restored, autocommit=True) as other:
        statements = [line for line in found.stdout.splitlines() if not line.startswith("\\")]
        other.execute("\n".join(statements))
        lanes = opened(restored, table)
        why = refused(lanes)
        assert "is not in a restored dump" in why
        other.execute("RESET ALL")
        other.execute(why.rpartition("go on in it with ")[2])
    assert lanes.marks()[0] == LaneMark(7, 2)
    assert lanes.write(lane_rows(TWO, 7, before=LaneMark(6))).outcome is Outcome.ALREADY
    assert lanes.write(NEXT).outcome is Outcome.WRITTEN
    assert len(shown(restored, table)) == 3


def test_marks_of_a_former_version_learn_the_table_with_the_first_rows(
    postgres: Server, db: psycopg.Connection[Any], table: str
) -> None:
    db.execute(FORMER_MARKS.format(table))
    db.execute(
        f"INSERT INTO {table}_marks SELECT 'job', %s, lane, 7, 2, 'of epoch 7' "
        "FROM generate_series(0, 15) AS lane",
        [UID],
    )
    lanes = opened(postgres.url, table)
    assert lanes.marks()[0] == LaneMark(7, 2)
    lanes.begin(7)
    assert lanes.marks()[0] == LaneMark(7, 2)
    assert lanes.write(lane_rows(TWO, 7, before=LaneMark(6))).outcome is Outcome.ALREADY
    assert lanes.write(NEXT).outcome is Outcome.WRITTEN
    db.execute(f"DROP TABLE {table}")
    db.execute(f"CREATE TABLE {table} {MADE}")
    assert "up to 8" in refused(lanes)


def test_marks_of_a_former_version_that_are_somebody_elses_go_on_as_they_are(
    postgres: Server, db: psycopg.Connection[Any], table: str
) -> None:
    db.execute(FORMER_MARKS.format(table))
    db.execute(f"CREATE ROLE {table}_writer LOGIN")
    db.execute(f"GRANT INSERT ON {table} TO {table}_writer")
    db.execute(f"GRANT SELECT, INSERT, UPDATE ON {table}_marks TO {table}_writer")
    lanes = begun(postgres.url.replace("holdfast@", f"{table}_writer@"), table)
    assert lanes.write(NEXT).outcome is Outcome.WRITTEN
    assert lanes.marks()[0] == LaneMark(8, 1)
    db.execute(f"ALTER TABLE {table}_marks ADD COLUMN table_oid oid")
    third = lane_rows(rows_of(("dora", 4)), 9, before=LaneMark(8, 1))
    assert lanes.write(third).outcome is Outcome.WRITTEN
    db.execute(f"DROP TABLE {table}")
    db.execute(f"CREATE TABLE {table} {MADE}")
    assert "up to 9" in refused(lanes)
