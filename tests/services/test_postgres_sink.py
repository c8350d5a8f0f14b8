"""Lanes of a real Postgres: each row is shown once, whoever writes, stops, dies or comes late."""

from __future__ import annotations

import re
import signal
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from holdfast.connectors.contract import StagedPart
from holdfast.connectors.lane_publisher import LaneConnection
from holdfast.connectors.lanes import LANES, LaneMark, Outcome
from holdfast.connectors.postgres import lane_writer
from holdfast.connectors.postgres.sink import PostgresSink
from holdfast.errors import DefinitionError, Unavailable
from holdfast.testing import conformance
from tests.services.cable import Cable
from tests.services.harness import wait_until
from tests.services.postgres_kit import created, db, postgres
from tests.services.postgres_lanes import SCHEMA, lane_rows, opened, rows_of, shown, stopped_in_copy
from tests.services.servers import PostgresDirectory, Server

__all__ = ["db", "postgres"]

TWO = rows_of(("anna", 1), ("ben", 2))
MORE = rows_of(("cleo", 3))


@pytest.fixture
def table(db: psycopg.Connection[Any]) -> str:
    return created(db, '"user" text, total bigint')


def test_it_keeps_what_is_promised_of_a_lane_sink(postgres: Server, db: psycopg.Connection[Any]) -> None:
    with Cable(port_of(postgres)) as cable:
        dsn = f"postgresql://holdfast@127.0.0.1:{cable.port}/postgres"

        def make(place: str) -> PostgresSink:
            db.execute(f'CREATE TABLE IF NOT EXISTS {place} ("user" text, total bigint CHECK (total <> 13))')
            return PostgresSink(place, dsn=dsn, marks=f"{place}_marks", timeout_seconds=6)

        @contextmanager
        def away(place: str) -> Iterator[None]:
            cable.refuse()
            yield
            cable.restore()

        report = conformance.check_lanes(
            make, lambda place: shown(postgres.url, place), disturbed=away, refused=rows_of(("anna", 13))
        )
    assert not report.not_asked, report


def test_marks_are_made_once_and_say_what_is_shown(postgres: Server, table: str) -> None:
    fresh = PostgresSink(table, dsn=postgres.url, marks=f"{table}_marks").lane_writer("job", "out").open(1)
    assert fresh.marks() == {}
    fresh.begin(7)
    fresh.begin(9)
    assert fresh.marks() == {lane: LaneMark(7) for lane in range(LANES)}
    assert fresh.write(lane_rows(TWO, 8, lane=3, before=LaneMark(7))).outcome is Outcome.WRITTEN
    assert fresh.marks()[3] == LaneMark(8, 2)
    assert fresh.marks()[3].input == "of epoch 8"


def test_rows_are_shown_once_however_often_they_are_written(postgres: Server, table: str) -> None:
    lanes = opened(postgres.url, table)
    assert lanes.write(lane_rows(TWO)).outcome is Outcome.WRITTEN
    assert lanes.write(lane_rows(TWO)).outcome is Outcome.ALREADY
    assert lanes.write(lane_rows(MORE, 2, before=LaneMark(1, 2))).outcome is Outcome.WRITTEN
    assert lanes.write(lane_rows(TWO)).outcome is Outcome.ALREADY, "a late twin"
    assert lanes.write(lane_rows(MORE, 2, input="another")).outcome is Outcome.OTHER_ROWS
    assert shown(postgres.url, table) == [("anna", 1), ("ben", 2), ("cleo", 3)]


@pytest.mark.parametrize("type", ["double precision", "timestamptz"])
def test_a_column_that_was_given_another_type_is_not_filled_with_bytes_of_the_old_one(
    postgres: Server, db: psycopg.Connection[Any], table: str, type: str
) -> None:
    """Binary COPY takes eight bytes of a whole number for eight of whatever the column is by now."""
    writer = PostgresSink(table, dsn=postgres.url).lane_writer("job", table)
    lanes = LaneConnection(writer, 1)
    lanes.begin(0)
    assert lanes.write(lane_rows(TWO)).outcome is Outcome.WRITTEN
    db.execute(f"ALTER TABLE {table} ALTER total TYPE {type} USING NULL")
    more = lane_rows(MORE, 2, before=LaneMark(1, 2))
    assert lanes.write(more).outcome is Outcome.REFUSED
    assert [user for user, *_ in shown(postgres.url, table)] == ["anna", "ben"]
    db.execute(f"ALTER TABLE {table} ALTER total TYPE bigint USING NULL")
    assert lanes.write(more).outcome is Outcome.WRITTEN
    assert shown(postgres.url, table)[2] == ("cleo", 3)


def test_a_column_that_has_grown_is_written_on(
    postgres: Server, db: psycopg.Connection[Any], table: str
) -> None:
    db.execute(f"ALTER TABLE {table} ALTER total TYPE int")
    rows = rows_of(("anna", 1), schema=pa.schema([("user", pa.string()), ("total", pa.int32())]))
    lanes = LaneConnection(PostgresSink(table, dsn=postgres.url).lane_writer("job", table), 1)
    lanes.begin(0)
    assert lanes.write(lane_rows(rows)).outcome is Outcome.WRITTEN
    db.execute(f"ALTER TABLE {table} ALTER total TYPE bigint")
    again = lane_rows(rows, 2, before=LaneMark(1, 1))
    assert [lanes.write(again).outcome for _ in range(2)] == [Outcome.BUSY, Outcome.WRITTEN]
    assert shown(postgres.url, table) == [("anna", 1)] * 2


@pytest.mark.parametrize(
    ("column", "given"),
    [("timestamp(0)", pa.timestamp("us")), ("timestamptz(3)", pa.timestamp("us", "UTC")),
     ("numeric(10,-3)", pa.decimal128(6, 0))],
)  # fmt: skip
def test_a_column_that_would_round_is_refused(
    postgres: Server, db: psycopg.Connection[Any], table: str, column: str, given: pa.DataType
) -> None:
    db.execute(f"ALTER TABLE {table} ADD c {column}")
    with pytest.raises(DefinitionError, match=r"which column 'c' of table .* does not take"):
        PostgresSink(table, dsn=postgres.url).check_schema(pa.schema([("c", given)]))


def test_a_table_of_another_server_is_refused(
    postgres: Server, db: psycopg.Connection[Any], table: str
) -> None:
    db.execute(f"CREATE FOREIGN DATA WRAPPER w_{table}")
    db.execute(f"CREATE SERVER s_{table} FOREIGN DATA WRAPPER w_{table}")
    db.execute(f"CREATE FOREIGN TABLE f_{table} (total bigint) SERVER s_{table}")
    with pytest.raises(DefinitionError, match="is a foreign table: its own server commits for itself"):
        PostgresSink(f"f_{table}", dsn=postgres.url).check_schema(pa.schema([("total", pa.int64())]))


def test_a_table_that_a_crash_empties_is_refused(
    postgres: Server, db: psycopg.Connection[Any], table: str
) -> None:
    """Its marks would stay, and say that the rows are there."""
    schema, unlogged = pa.schema([("total", pa.int64())]), "is unlogged: a crash of the server empties it"
    db.execute(f"CREATE UNLOGGED TABLE u_{table} (total bigint)")
    with pytest.raises(DefinitionError, match=f"u_{table} {unlogged}.*ALTER TABLE u_{table} SET LOGGED"):
        PostgresSink(f"u_{table}", dsn=postgres.url).check_schema(schema)
    for kept in ({"marks": f"u_{table}"}, {"rejects": f"u_{table}"}):
        with pytest.raises(DefinitionError, match=f"u_{table} {unlogged}"):
            PostgresSink(table, dsn=postgres.url, **kept).check_schema(schema)
    db.execute(f"CREATE TEMP TABLE t_{table} (total bigint)")
    (home,) = db.execute("SELECT pg_my_temp_schema()::regnamespace::text").fetchone() or ("",)
    with pytest.raises(DefinitionError, match=f"t_{table} is temporary: its rows end with a session"):
        PostgresSink(f"{home}.t_{table}", dsn=postgres.url).check_schema(schema)

    db.execute(f"CREATE TABLE p_{table} (total bigint) PARTITION BY LIST (total)")
    db.execute(f"CREATE TABLE p1_{table} PARTITION OF p_{table} FOR VALUES IN (1)")
    sink = PostgresSink(f"p_{table}", dsn=postgres.url)
    sink.check_schema(schema)
    db.execute(f"CREATE UNLOGGED TABLE p2_{table} PARTITION OF p_{table} FOR VALUES IN (2)")
    with pytest.raises(DefinitionError, match=f"p2_{table} {unlogged}"):
        sink.check_schema(schema)


def test_a_table_that_becomes_unlogged_is_not_written(
    postgres: Server, db: psycopg.Connection[Any], table: str
) -> None:
    lanes = opened(postgres.url, table)
    assert lanes.write(lane_rows(TWO)).outcome is Outcome.WRITTEN
    db.execute(f"ALTER TABLE {table} SET UNLOGGED")
    result = lanes.write(lane_rows(MORE, 2, before=LaneMark(1, 2)))
    assert result.outcome is Outcome.REFUSED
    assert "is unlogged" in result.reason


def test_without_the_mark_rows_are_shown_twice(
    postgres: Server, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the tests above: the mark is what they see at work."""
    monkeypatch.setattr(lane_writer, "continues", lambda mark, rows: 0)
    lanes = opened(postgres.url, table)
    for _ in range(2):
        assert lanes.write(lane_rows(TWO)).outcome is Outcome.WRITTEN
    assert len(shown(postgres.url, table)) == 4


def test_twins_at_the_same_moment_show_rows_once(postgres: Server, table: str) -> None:
    outcomes: list[Outcome] = []
    many = rows_of(*((f"user {n}", n) for n in range(5_000)))

    def twin() -> None:
        outcomes.append(opened(postgres.url, table).write(lane_rows(many)).outcome)

    twins = [threading.Thread(target=twin) for _ in range(4)]
    for each in twins:
        each.start()
    for each in twins:
        each.join()
    assert outcomes.count(Outcome.WRITTEN) == 1
    assert set(outcomes) <= {Outcome.WRITTEN, Outcome.ALREADY, Outcome.BUSY}
    assert len(shown(postgres.url, table)) == 5_000


def test_rows_are_loaded_and_encoded_before_the_lane_is_locked(postgres: Server, table: str) -> None:
    """Storage may be slow, and whoever waits for the lane would wait for it."""
    lanes, free = opened(postgres.url, table), list[bool]()

    def load() -> pa.Table:
        with psycopg.connect(postgres.url) as other:
            found = other.execute(
                "SELECT lane FROM holdfast_marks WHERE uid = %s AND lane = 0 FOR UPDATE SKIP LOCKED", [table]
            )
            free.append(found.fetchone() is not None)
        return TWO

    rows = lane_rows(TWO)
    slow = replace(rows, parts=(StagedPart(0, 2, load),))
    assert lanes.write(slow).outcome is Outcome.WRITTEN
    assert free == [True]


def test_a_lane_that_another_writer_holds_is_busy_within_seconds(postgres: Server, table: str) -> None:
    lanes = opened(postgres.url, table)
    with psycopg.connect(postgres.url) as other:
        other.execute("SELECT FROM holdfast_marks WHERE uid = %s AND lane = 0 FOR UPDATE", [table])
        found = lanes.write(lane_rows(TWO))
        assert found.outcome is Outcome.BUSY
        with pytest.raises(Unavailable, match="is being written by another process"):
            lanes.marks()
        other.rollback()
    assert lanes.write(lane_rows(TWO)).outcome is Outcome.WRITTEN


@pytest.mark.parametrize("seconds", [10.0, 1.5])
def test_a_client_that_was_stopped_inside_copy_is_ended_by_a_newer_term(
    postgres: Server, table: str, seconds: float
) -> None:
    """No time-out of the server ends it: it would hold its lane for ever."""
    newer = PostgresSink(table, dsn=postgres.url, timeout_seconds=seconds).lane_writer("job", "out").open(2)
    newer.begin(0)
    before = newer.marks()[0]
    other = stopped_in_copy(postgres.url, table)
    try:
        assert newer.write(lane_rows(TWO, term=2)).outcome is Outcome.WRITTEN
        assert before < newer.marks()[0]
    finally:
        other.send_signal(signal.SIGCONT)
        assert other.communicate(timeout=60)[0] == "UNAVAILABLE\n"
    assert shown(postgres.url, table) == [("anna", 1), ("ben", 2)]
    newer._connection.execute("DELETE FROM holdfast_marks WHERE uid = 'out'")


def test_a_client_that_is_lost_while_it_reads_marks_is_ended_by_a_newer_term(
    postgres: Server, table: str
) -> None:
    """It has locked all lanes, and the server waits for it."""
    with Cable(port_of(postgres)) as cable, ThreadPoolExecutor(1) as pool:
        dsn = f"postgresql://holdfast@127.0.0.1:{cable.port}/postgres"
        older = opened(dsn, table, timeout_seconds=60)
        newer = opened(postgres.url, table, term=2)
        cable.lose_answers_to = b"FOR UPDATE"
        reading = pool.submit(older.marks)
        wait_until(lambda: cable.answers_lost == 1, "all lanes to be locked")
        assert newer.write(lane_rows(TWO, term=2)).outcome is Outcome.WRITTEN
        with pytest.raises(Unavailable):
            reading.result()
    assert shown(postgres.url, table) == [("anna", 1), ("ben", 2)]


def test_a_server_that_falls_silent_is_not_waited_for_without_end(postgres: Server, table: str) -> None:
    """As the table is looked at, as the sink is asked for the first time, and as a holder of the lane is
    looked for."""
    with Cable(port_of(postgres)) as cable, psycopg.connect(postgres.url) as other:
        dsn = f"postgresql://holdfast@127.0.0.1:{cable.port}/postgres"
        sink = PostgresSink(table, dsn=dsn, timeout_seconds=3)
        lanes = opened(dsn, table, timeout_seconds=3)
        cable.lose_answers_to = b"relkind"
        sink.check_schema(SCHEMA)  # the run meets it again, and waits
        cable.lose_answers_to = b"synchronous_commit"
        with pytest.raises(Unavailable):
            sink.lane_writer("job", table).open(1).marks()
        other.execute("SELECT FROM holdfast_marks WHERE uid = %s AND lane = 0 FOR UPDATE", [table])
        cable.lose_answers_to = b"pg_terminate_backend"
        assert lanes.write(lane_rows(TWO)).outcome is Outcome.BUSY
        assert cable.answers_lost == 3


@pytest.mark.parametrize("hurt", ["cut", "refuse"])
def test_a_server_that_is_not_there_is_a_result(postgres: Server, table: str, hurt: str) -> None:
    with Cable(port_of(postgres)) as cable:
        dsn = f"postgresql://holdfast@127.0.0.1:{cable.port}/postgres"
        lanes = opened(dsn, table, timeout_seconds=6)
        getattr(cable, hurt)()
        assert lanes.write(lane_rows(TWO)).outcome is Outcome.UNAVAILABLE
        with pytest.raises(Unavailable):
            PostgresSink(table, dsn=dsn, timeout_seconds=6).lane_writer("job", table).open(1)
        cable.restore()
        assert opened(dsn, table).write(lane_rows(TWO)).outcome in (Outcome.WRITTEN, Outcome.ALREADY)
    wait_until(lambda: len(shown(postgres.url, table)) == 2, "the rows to be shown once")


def test_an_answer_lost_after_the_commit_shows_nothing_twice(
    postgres: Server, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_writer, "WRITING_PATIENCE", 1.0)
    with Cable(port_of(postgres)) as cable:
        dsn = f"postgresql://holdfast@127.0.0.1:{cable.port}/postgres"
        lanes = opened(dsn, table, timeout_seconds=6)
        assert lanes.write(lane_rows(TWO)).outcome is Outcome.WRITTEN
        cable.lose_answers_to = b"COMMIT\0"
        more = lane_rows(MORE, 2, before=LaneMark(1, 2))
        lost = lanes.write(more)
        assert lost.outcome is Outcome.UNAVAILABLE, "it may or may not be shown"
        assert shown(postgres.url, table) == [("anna", 1), ("ben", 2), ("cleo", 3)]
        cable.lose_answers_to = b""
        assert opened(dsn, table).write(more).outcome is Outcome.ALREADY
    assert shown(postgres.url, table) == [("anna", 1), ("ben", 2), ("cleo", 3)]


def port_of(postgres: Server) -> int:
    return int(postgres.url.rpartition(":")[2].partition("/")[0])


def test_a_server_that_went_back_is_noticed_and_written_again() -> None:
    with PostgresDirectory() as directory:
        with directory.running(), psycopg.connect(directory.url, autocommit=True) as db:
            db.execute('CREATE TABLE totals ("user" text, total bigint)')
            assert opened(directory.url, "totals").write(lane_rows(TWO)).outcome is Outcome.WRITTEN
        directory.save_copy()
        next_rows = lane_rows(MORE, 2, before=LaneMark(1, 2))
        with directory.running() as server:
            lanes = opened(directory.url, "totals")
            assert lanes.write(next_rows).outcome is Outcome.WRITTEN
            server.signal(signal.SIGKILL)
            wait_until(lambda: server.process.poll() is not None, "the server to be gone")
            assert lanes.write(lane_rows(TWO, 3, before=LaneMark(2, 1))).outcome is Outcome.UNAVAILABLE
        directory.go_back()
        with directory.running():
            lanes = opened(directory.url, "totals")
            third = lane_rows(TWO, 3, before=LaneMark(2, 1))
            assert lanes.write(third).outcome is Outcome.WENT_BACK
            assert lanes.write(next_rows).outcome is Outcome.WRITTEN, "it is shown again, and only it"
            assert lanes.write(third).outcome is Outcome.WRITTEN
            assert len(shown(directory.url, "totals")) == 5


REFUSED = {
    "NUL in a text": ("a\0b", 1, "invalid byte sequence"),
    "a constraint": ("ben", -1, "violates check constraint"),
    "a value that does not fit": ("somebody with a long name", 1, "value too long"),
    "a trigger": ("trigger", 1, "not on a Sunday"),
}


@pytest.fixture
def strict(db: psycopg.Connection[Any]) -> str:
    name = f"strict_{uuid.uuid4().hex[:8]}"
    db.execute(f'CREATE TABLE {name} ("user" varchar(10), total bigint CHECK (total >= 0))')
    db.execute(
        f"CREATE FUNCTION {name}_no() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'not on a Sunday'; END $$"
    )
    db.execute(
        f"CREATE CONSTRAINT TRIGGER no AFTER INSERT ON {name} DEFERRABLE INITIALLY DEFERRED FOR EACH ROW "
        f"WHEN (NEW.\"user\" = 'trigger') EXECUTE FUNCTION {name}_no()"
    )
    return name


@pytest.mark.parametrize("what", REFUSED)
def test_a_row_that_is_refused_goes_to_the_rejects_with_the_progress_of_its_lane(
    postgres: Server, db: psycopg.Connection[Any], strict: str, what: str
) -> None:
    user, total, reason = REFUSED[what]
    rows = rows_of(("anna", 1), *((f"u{n}", n) for n in range(50)), (user, total), ("zoe", 9))
    holding = opened(postgres.url, strict)
    told = holding.write(lane_rows(rows))
    assert told.outcome is Outcome.REFUSED
    assert f"table {strict} refuses row 51 of lane 0 in epoch 1" in told.reason
    assert reason in told.reason
    assert shown(postgres.url, strict) == []
    putting = opened(postgres.url, strict, rejects=f"{strict}_rejects")
    done = putting.write(lane_rows(rows))
    assert (done.outcome, done.rejected) == (Outcome.WRITTEN, 1)
    assert len(shown(postgres.url, strict)) == 52
    (rejected,) = db.execute(f"SELECT epoch, lane, row, reason, data FROM {strict}_rejects").fetchall()
    assert rejected[:3] == (1, 0, 51)
    assert reason in rejected[3]
    assert f'"total": {total}' in rejected[4]
    assert putting.write(lane_rows(rows)).outcome is Outcome.ALREADY
    assert db.execute(f"SELECT count(*) FROM {strict}_rejects").fetchone() == (1,)


def test_every_value_arrives_as_it_is(postgres: Server, db: psycopg.Connection[Any]) -> None:
    name = f"values_{uuid.uuid4().hex[:8]}"
    db.execute(
        f"CREATE TABLE {name} (number bigserial, i int8, s int2, t text, b bytea, d numeric(20,4), f float8, "
        "g float4, ok bool, day date, at timestamptz, n timestamp, j jsonb, wide int8)"
    )
    text = {
        "i": ["9223372036854775807", None, "-9223372036854775808"],
        "s": ["-32768", "32767", None],
        "t": ["", None, "ü\n\\."],
        "d": ["1.5000", "-1234567890123456.0001", "0.0000"],
        "f": ["NaN", "-Infinity", None],
        "g": ["1.5", None, "-0"],
        "day": ["2024-02-29", "0001-01-01", "9999-12-31"],
        "at": ["2024-02-29 12:00:00.000001+00", None, "0001-01-01 00:00:00+00"],
        "n": ["2024-02-29 12:00:00", "9999-12-31 23:59:59.999999", None],
        "j": ['{"a": 1}', "null", None],
        "wide": ["-5", None, "7"],
    }
    from decimal import Decimal

    us = pa.timestamp("us")
    table = pa.table(
        {
            "i": pa.array([2**63 - 1, None, -(2**63)], pa.int64()),
            "s": pa.array([-(2**15), 2**15 - 1, None], pa.int16()),
            "t": pa.array(text["t"]),
            "b": pa.array([b"\x00\xff", b"", None]),
            "d": pa.array([Decimal(each) for each in text["d"]], pa.decimal128(20, 4)),
            "f": pa.array([float("nan"), float("-inf"), None]),
            "g": pa.array([1.5, None, -0.0], pa.float32()),
            "ok": pa.array([True, False, None]),
            "day": pa.array([19782, -719162, 2932896], pa.int32()).cast(pa.date32()),
            "at": pa.array([1709208000000001, None, -62135596800000000]).cast(pa.timestamp("us", "UTC")),
            "n": pa.array([1709208000000000, 253402300799999999, None]).cast(us),
            "j": pa.array(text["j"]),
            "wide": pa.array([-5, None, 7], pa.int8()),
        }
    )
    PostgresSink(name, dsn=postgres.url).check_schema(table.schema)
    assert opened(postgres.url, name).write(lane_rows(table)).outcome is Outcome.WRITTEN
    db.execute("SET TimeZone = 'UTC'")
    for column, wanted in text.items():
        found = [row[0] for row in db.execute(f"SELECT {column}::text FROM {name} ORDER BY number")]
        assert found == wanted, column
    assert [row[0] for row in db.execute(f"SELECT b FROM {name} ORDER BY number")] == [b"\x00\xff", b"", None]
    assert [row[0] for row in db.execute(f"SELECT ok FROM {name} ORDER BY number")] == [True, False, None]


@pytest.mark.parametrize(
    ("column", "value"),
    [("at", -(2**63)), ("at", -(2**63) + 1), ("n", -(2**62)), ("day", -(2**31)), ("day", 2**31 - 1)],
)
def test_a_time_that_the_server_does_not_know_is_refused_and_never_another_time(
    postgres: Server, db: psycopg.Connection[Any], column: str, value: int
) -> None:
    name = f"times_{uuid.uuid4().hex[:8]}"
    db.execute(f"CREATE TABLE {name} (at timestamptz, n timestamp, day date)")
    kinds = {"at": pa.timestamp("us", "UTC"), "n": pa.timestamp("us"), "day": pa.date32()}
    base = pa.int32() if column == "day" else pa.int64()
    table = pa.table({column: pa.array([value], base).cast(kinds[column])})
    assert opened(postgres.url, name).write(lane_rows(table)).outcome is Outcome.REFUSED


def test_a_table_that_was_changed_behind_its_back_stops_the_sink_with_the_reason(
    postgres: Server, db: psycopg.Connection[Any], table: str
) -> None:
    """Nothing is lost: what the table takes again is written from where the mark is."""
    dsn = postgres.url.replace("holdfast@", f"{table}_writer@")
    lanes = opened(postgres.url, table)
    assert lanes.write(lane_rows(TWO)).outcome is Outcome.WRITTEN
    db.execute(f"CREATE ROLE {table}_writer LOGIN")
    db.execute(f"GRANT ALL ON {table}, holdfast_marks TO {table}_writer")
    more = lane_rows(MORE, 2, before=LaneMark(1, 2))
    writer = PostgresSink(table, dsn=dsn).lane_writer("job", table)
    changes = {
        "permission denied|lacks INSERT": (
            f"REVOKE INSERT ON {table} FROM {table}_writer", f"GRANT INSERT ON {table} TO {table}_writer",
        ),
        "there is no table|does not exist": (
            f"ALTER TABLE {table} RENAME TO {table}_away", f"ALTER TABLE {table}_away RENAME TO {table}",
        ),
        "does not take|of type": (
            f"ALTER TABLE {table} ALTER total TYPE int", f"ALTER TABLE {table} ALTER total TYPE bigint",
        ),
        "needs a value for 'must'|must": (
            f"ALTER TABLE {table} ADD must int; UPDATE {table} SET must = 1; "
            f"ALTER TABLE {table} ALTER must SET NOT NULL",
            f"ALTER TABLE {table} DROP must",
        ),
    }  # fmt: skip
    open_before = writer.open(1)
    assert open_before.write(lane_rows(TWO)).outcome is Outcome.ALREADY
    for told, (hurt, heal) in changes.items():
        db.execute(hurt)
        for connection in (open_before, writer.open(1)):
            found = connection.write(more)
            assert found.outcome is Outcome.REFUSED, (told, found)
            assert re.search(told, found.reason), found.reason
        db.execute(heal)
        open_before = writer.open(1)
    assert open_before.write(more).outcome is Outcome.WRITTEN
    assert shown(postgres.url, table) == [("anna", 1), ("ben", 2), ("cleo", 3)]


def test_a_server_that_works_longer_than_it_is_waited_for_is_told_from_one_that_is_gone(
    postgres: Server, db: psycopg.Connection[Any], table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.execute(
        f"CREATE FUNCTION slowly_{table}() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_sleep(600); RETURN new; END $$"
    )
    db.execute(f"CREATE TRIGGER slow BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION slowly_{table}()")
    monkeypatch.setattr(lane_writer, "WRITING_PATIENCE", 1.0)
    found = opened(postgres.url, table, timeout_seconds=3).write(lane_rows(TWO))
    assert found.outcome is Outcome.UNAVAILABLE
    assert "said nothing for 3 s" in found.reason
    assert "timeout_seconds" in found.reason
