"""A table of a real Postgres as a source: no row is missed and none read twice, whatever its server does."""

from __future__ import annotations

import os
import re
import signal
from typing import Any

import psycopg
import pytest

import holdfast as hf
from holdfast.connectors.contract import FollowingReader
from holdfast.connectors.postgres.table_source import TableReader, TableSource
from holdfast.errors import DefinitionError, InputVanished, RestoreError, Unavailable
from holdfast.graph.guarantees import Guarantee, check_guarantee, statements
from holdfast.secret import Secret
from holdfast.testing import conformance
from tests.services.cable import Cable
from tests.services.harness import wait_until
from tests.services.postgres_kit import created, db, postgres
from tests.services.servers import PostgresDirectory, Server

__all__ = ["db", "postgres"]

ROWS = 12


def new_table(db: psycopg.Connection[Any]) -> str:
    columns = "id bigserial PRIMARY KEY, txid xid8 NOT NULL DEFAULT pg_current_xact_id(), n int"
    name = created(db, columns, "events")
    db.execute(f"CREATE INDEX ON {name} (txid, id)")
    return name


@pytest.fixture
def table(db: psycopg.Connection[Any]) -> str:
    return new_table(db)


def add(db: psycopg.Connection[Any], table: str, *numbers: int) -> None:
    db.execute(f"INSERT INTO {table} (n) SELECT unnest(%s::int[])", [list(numbers)])


def read(reader: TableReader, after: Any = None, now_ms: int = 0) -> tuple[list[int], Any]:
    """The numbers of all rows that can be planned now, as a task reads them, and the position after them."""
    found: list[int] = []
    while (slice := reader.next(after, None, now_ms)) is not None:
        for batch in reader.tasks(slice).all_rows():
            found += batch.column("n").to_pylist()
        after = slice.end
    return found, after


@pytest.mark.parametrize("by", [("txid", "id"), ("txid",)])
def test_it_keeps_what_is_promised_about_planning(
    postgres: Server, db: psycopg.Connection[Any], table: str, by: tuple[str, ...]
) -> None:
    for number in range(ROWS // 2):
        add(db, table, 2 * number, 2 * number + 1)
    report = conformance.check_source(
        lambda: TableSource(table, dsn=postgres.url, by=by, schema="n int"),
        max_rows="exact" if len(by) == 2 else "approximate",
    )
    assert {"check", "end-at", "waiting-and-news", "goes-on", "limit-loses-nothing"} <= set(report.kept)


def test_a_transaction_that_takes_its_number_early_and_commits_late_is_not_missed(
    postgres: Server, db: psycopg.Connection[Any], table: str
) -> None:
    reader = TableSource(table, dsn=postgres.url, by="txid", schema="n int").reader([])
    add(db, table, 1)
    with psycopg.connect(postgres.url, application_name="nightly") as slow:
        add(slow, table, 2)
        add(db, table, 3)
        found, after = read(reader)
        assert (found, after["by"], after["server"]) == ([1], [number(db, table, 1)], identity(db))
        _, after = read(reader)
        assert not reader.exhausted(after), "a row is there that cannot be planned yet"
        assert f"process {slow.info.backend_pid} of user holdfast (application 'nightly'" in reader.health()
        assert f"pg_terminate_backend({slow.info.backend_pid})" in reader.health()
        slow.commit()
    assert sorted(read(reader, after)[0]) == [2, 3]
    assert reader.health() == ""


def test_a_transaction_of_which_little_may_be_seen_is_waited_for_all_the_same(
    postgres: Server, db: psycopg.Connection[Any], table: str
) -> None:
    """Postgres shows a user without rights to statistics little of what others do."""
    db.execute(f"CREATE ROLE clerk_{table} LOGIN")
    db.execute(f"GRANT SELECT ON {table} TO clerk_{table}")
    dsn = postgres.url.replace("holdfast@", f"clerk_{table}@")
    reader = TableSource(table, dsn=dsn, by="txid", schema="n int").reader([])
    with psycopg.connect(postgres.url) as slow:
        add(slow, table, 1)
        add(db, table, 2)
        assert read(reader)[0] == []
        told = reader.health()
        assert f"which is still open: process {slow.info.backend_pid} of user holdfast" in told
        assert "pg_read_all_stats" in told
        slow.commit()
    assert sorted(read(reader)[0]) == [1, 2]


def test_a_prepared_transaction_holds_rows_up_and_is_named(
    postgres: Server, db: psycopg.Connection[Any], table: str
) -> None:
    reader = TableSource(table, dsn=postgres.url, by="txid", schema="n int").reader([])
    with psycopg.connect(postgres.url, autocommit=True) as other:
        other.execute("BEGIN")
        add(other, table, 1)
        other.execute("PREPARE TRANSACTION 'payment'")
        add(db, table, 2)
        assert read(reader)[0] == []
        assert "a prepared transaction 'payment' of user holdfast" in reader.health()
        other.execute("COMMIT PREPARED 'payment'")
    assert sorted(read(reader)[0]) == [1, 2]


def test_rows_with_numbers_that_are_yet_to_come_are_named_and_can_be_read_then(
    postgres: Server, db: psycopg.Connection[Any], table: str
) -> None:
    """As in a table that was restored into a new server: no transaction holds them up that could be ended."""
    reader = TableSource(table, dsn=postgres.url, by=("txid", "id")).reader([])
    add(db, table, 1)
    db.execute(f"INSERT INTO {table} (txid, n) VALUES ('999999999999', 2)")
    found, position = read(reader)
    assert found == [1]
    assert "numbers of transactions that the server has not come to yet" in reader.health()
    told = re.search(r"UPDATE .*", reader.health())
    assert told is not None
    db.execute(told[0])
    assert read(reader, position)[0] == [2]
    assert reader.health() == ""


def test_rows_that_a_crash_of_the_server_could_take_back_are_not_planned(
    postgres: Server, db: psycopg.Connection[Any], table: str
) -> None:
    """With synchronous_commit = off rows are seen before they are on disk; after a crash their numbers are
    given to others, which would be missed."""
    reader = TableSource(table, dsn=postgres.url, by="txid", schema="n int").reader([])
    wal_writer = db.execute("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'").fetchone()
    assert wal_writer is not None
    os.kill(wal_writer[0], signal.SIGSTOP)
    try:
        with psycopg.connect(postgres.url, autocommit=True) as hasty:
            hasty.execute("SET synchronous_commit = off")
            add(hasty, table, 1)
            assert read(reader)[0] == []
            add(db, table, 2)
        assert sorted(read(reader)[0]) == [1, 2]
    finally:
        os.kill(wal_writer[0], signal.SIGCONT)


def number(db: psycopg.Connection[Any], table: str, n: int) -> str:
    row = db.execute(f"SELECT txid::text FROM {table} WHERE n = {n}").fetchone()
    assert row is not None
    return str(row[0])


def identity(db: psycopg.Connection[Any]) -> str:
    row = db.execute("SELECT system_identifier FROM pg_control_system()").fetchone()
    assert row is not None
    return f"{row[0]}/1"


def test_a_server_that_has_gone_back_is_refused() -> None:
    """Its numbers are given out again, below the position: such rows would be missed without a trace."""
    with PostgresDirectory() as directory:
        with directory.running(), psycopg.connect(directory.url, autocommit=True) as db:
            table = new_table(db)
            add(db, table, 1)
        directory.save_copy()
        with directory.running(), psycopg.connect(directory.url, autocommit=True) as db:
            for n in range(2, 5):
                add(db, table, n)
            source = TableSource(table, dsn=directory.url, by="txid", schema="n int")
            found, after = read(source.reader([]))
            assert found == [1, 2, 3, 4]
        directory.go_back()
        with directory.running(), pytest.raises(RestoreError, match="it has gone back") as refused:
            source.reader([]).next(after, None, 0)
        assert "\n" not in str(refused.value)


def test_another_server_is_refused_until_it_is_accepted(
    postgres: Server, db: psycopg.Connection[Any], table: str
) -> None:
    add(db, table, 1)
    source = TableSource(table, dsn=postgres.url, by="txid", schema="n int")
    _, after = read(source.reader([]))
    before = {**after, "server": "7000000000000000000/1"}
    with pytest.raises(RestoreError, match="a restored backup or a failover") as refused:
        source.reader([]).next(before, None, 0)
    assert f"accept='{identity(db)}'" in str(refused.value)
    accepting = TableSource(table, dsn=postgres.url, by="txid", schema="n int", accept=identity(db))
    add(db, table, 2)
    assert read(accepting.reader([]), before)[0] == [2]


def awaited(reader: TableReader, after: Any = None) -> tuple[list[int], Any]:
    """The same, once there are any: what is not on the server's disk yet is not planned."""
    found: list[tuple[list[int], Any]] = []
    wait_until(lambda: found.append(read(reader, after)) or found[-1][0], "rows")
    return found[-1]


def test_a_table_that_was_dropped_and_made_again_is_refused_until_it_is_accepted(
    postgres: Server, db: psycopg.Connection[Any], table: str
) -> None:
    add(db, table, 1)
    how: dict[str, Any] = {"dsn": postgres.url, "by": "txid", "schema": "n int"}
    reader = TableSource(table, **how).reader([])
    _, after = awaited(reader)
    add(db, table, 2)
    db.execute(f"ALTER TABLE {table} RENAME TO {table}_before")
    with pytest.raises(DefinitionError, match=f'relation "{table}" does not exist.*correct the table'):
        reader.next(after, None, 0)
    other = new_table(db)
    add(db, other, 1, 3)
    db.execute(f"ALTER TABLE {other} RENAME TO {table}")
    for opened in (reader, TableSource(table, **how).reader([])):
        with pytest.raises(InputVanished, match=r"made again.*rows after that may be lost") as refused:
            opened.next(after, None, 0)
    said = re.search(r"accept='(table \d+)'", str(refused.value))
    assert said is not None
    assert awaited(TableSource(table, accept=said[1], **how).reader([]), after)[0] == [1, 3]
    db.execute(f"ALTER TABLE {table} RENAME TO {other}")
    db.execute(f"ALTER TABLE {table}_before RENAME TO {table}")
    assert awaited(reader, after)[0] == [2], "the former one is back"


def test_rights_that_are_taken_away_end_the_run_with_their_name(
    postgres: Server, db: psycopg.Connection[Any], table: str
) -> None:
    add(db, table, 1)
    db.execute(f"CREATE ROLE {table}_reader LOGIN")
    db.execute(f"GRANT SELECT ON {table} TO {table}_reader")
    dsn = postgres.url.replace("holdfast@", f"{table}_reader@")
    reader = TableSource(table, dsn=dsn, by="txid", schema="n int").reader([])
    _, after = awaited(reader)
    add(db, table, 2)
    db.execute(f"REVOKE SELECT ON {table} FROM {table}_reader")
    with pytest.raises(
        DefinitionError, match=f"permission denied for table {table}; correct the table, the r"
    ):
        reader.next(after, None, 0)
    db.execute(f"GRANT SELECT ON {table} TO {table}_reader")
    assert awaited(reader, after)[0] == [2]


def test_rows_taken_away_after_they_were_planned_are_noticed(
    postgres: Server, db: psycopg.Connection[Any], table: str
) -> None:
    add(db, table, 1, 2, 3)
    reader = TableSource(table, dsn=postgres.url, by="txid", schema="n int").reader([])
    slice = reader.next(None, None, 0)
    assert slice is not None
    db.execute(f"DELETE FROM {table} WHERE n = 2")
    with pytest.raises(hf.InputVanished, match=r"had 3 rows where .* and has 2 now"):
        list(reader.tasks(slice).all_rows())
    spark: Any = None
    with pytest.raises(hf.InputVanished, match="and has 2 now"):
        reader.frame(spark, slice)  # before Spark reads anything


def test_with_a_lag_a_late_row_is_missed_and_that_is_said(
    postgres: Server, db: psycopg.Connection[Any], table: str
) -> None:
    source = TableSource(table, dsn=postgres.url, by="id", schema="n int", lag="30s")
    reader = source.reader([])
    with psycopg.connect(postgres.url) as slow:
        add(slow, table, 1)
        add(db, table, 2)
        assert read(reader, now_ms=0)[0] == []
        assert read(reader, now_ms=29_999)[0] == []
        found, after = read(reader, now_ms=30_000)
        assert found == [2]
        slow.commit()
    add(db, table, 3)
    assert read(reader, after, 40_000)[0] == []
    assert read(reader, after, 70_000)[0] == [3], "and 1 is never read"
    job = hf.Job("job")
    job.source(source, uid="in").sink(hf.MemorySink(), uid="out")
    told = statements(job.graph(), Guarantee.EXACTLY_ONCE)
    assert [each.guarantee for each in told] == [Guarantee.AT_MOST_ONCE] * 2
    assert all(
        "committed more than 30s after a row with a higher id was seen" in each.reason for each in told
    )
    assert check_guarantee(job.graph(), "exactly-once"), "accepted by saying lag="


def test_columns_are_inferred_once_and_checked_at_every_start(
    postgres: Server, db: psycopg.Connection[Any], table: str
) -> None:
    add(db, table, 1)
    source = TableSource(table, dsn=postgres.url, by="txid")
    before = set(vars(source))
    assert source.schema == "`id` long, `txid` long, `n` int"
    assert set(vars(source)) == before, "what is public there is in the fingerprint of the job"
    slice = source.reader([]).next(None, None, 0)
    assert slice is not None
    db.execute(f"ALTER TABLE {table} ADD COLUMN more text")
    again = TableSource(table, dsn=postgres.url, by="txid")
    with pytest.raises(DefinitionError, match="`more` string now; say which of them count"):
        again.reader(slice.notes).next(slice.end, None, 0)


def test_a_member_of_a_set_of_replicas_reads_what_another_has_planned(
    postgres: Server, db: psycopg.Connection[Any], table: str
) -> None:
    one, other = (TableSource(table, dsn=postgres.url, by=("txid", "id")) for _ in range(2))
    reader = other.reader([])
    assert isinstance(reader, FollowingReader)
    assert reader.next(None, None, 0) is None
    add(db, table, 1, 2)
    plan = one.reader([]).next(None, None, 0)
    assert plan is not None
    reader.follow(plan)
    assert [n for batch in reader.tasks(plan).all_rows() for n in batch.column("n").to_pylist()] == [1, 2]
    db.execute(f"ALTER TABLE {table} ADD more text")
    late = TableSource(table, dsn=postgres.url, by=("txid", "id")).reader([])
    with pytest.raises(DefinitionError, match="say which of them count"):
        late.follow(plan)


def test_every_value_comes_as_it_is(postgres: Server, db: psycopg.Connection[Any], table: str) -> None:
    columns = (
        "t text", "b bytea", "d numeric(10,2)", "f float8", "at timestamptz", "day date", "ok bool",
        "j jsonb",
    )  # fmt: skip
    db.execute(f"ALTER TABLE {table} {', '.join(f'ADD COLUMN {column}' for column in columns)}")
    moment = "2024-02-29 12:00:00.000001+02"
    for row in (
        ['a\n"b",\\.\n\\.', b"\x00\xff", "1.50", "NaN", moment, "2024-02-29", True, '{"a": [1]}'],
        ["", b"", "-99999999.99", "-Infinity", "0001-01-01", "9999-12-31", False, "null"],
        [None] * 8,
    ):
        db.execute(
            f"INSERT INTO {table} (t, b, d, f, at, day, ok, j) VALUES (%s, %s, %s, %s, %s, %s, %s, %s)", row
        )
    source = TableSource(
        table,
        dsn=postgres.url,
        by=("txid", "id"),
        schema="t string, b binary, d decimal(10,2), f double, at timestamp, day date, ok boolean, j string",
    )
    reader = source.reader([])
    slice = reader.next(None, None, 0)
    assert slice is not None
    rows = [tuple(row.values()) for batch in reader.tasks(slice).all_rows() for row in batch.to_pylist()]
    assert [row[0] for row in rows] == ['a\n"b",\\.\n\\.', "", None]
    assert [row[1] for row in rows] == [b"\x00\xff", b"", None]
    assert str([row[2:4] for row in rows[:2]]) == "[(Decimal('1.50'), nan), (Decimal('-99999999.99'), -inf)]"
    assert rows[0][4].isoformat() == "2024-02-29T10:00:00.000001+00:00"
    assert [str(row[5]) for row in rows] == ["2024-02-29", "9999-12-31", "None"]
    assert [row[6:] for row in rows] == [(True, '{"a": [1]}'), (False, "null"), (None, None)]


@pytest.mark.parametrize("text", ["x" * (3 << 20), "\ufeffbegins with a mark"])
def test_a_text_arrives_however_long_it_is_and_whatever_it_begins_with(
    postgres: Server, db: psycopg.Connection[Any], table: str, text: str
) -> None:
    db.execute(f"ALTER TABLE {table} ADD COLUMN t text")
    for _ in range(3):
        db.execute(f"INSERT INTO {table} (t) VALUES (%s)", [text])
    reader = TableSource(table, dsn=postgres.url, by=("txid", "id"), schema="t string").reader([])
    slice = reader.next(None, None, 0)
    assert slice is not None
    found = [each for batch in reader.tasks(slice).all_rows() for each in batch.column(0).to_pylist()]
    assert found == [text] * 3


def test_a_value_that_does_not_fit_fails_with_its_place(
    postgres: Server, db: psycopg.Connection[Any], table: str
) -> None:
    db.execute(f"ALTER TABLE {table} ADD COLUMN at timestamptz")
    db.execute(f"INSERT INTO {table} (at) VALUES ('infinity')")
    reader = TableSource(table, dsn=postgres.url, by="txid", schema="at timestamp").reader([])
    slice = reader.next(None, None, 0)
    assert slice is not None
    with pytest.raises(RestoreError, match=r"does not fit the schema 'at timestamp', where .*infinity"):
        list(reader.tasks(slice).all_rows())


def test_a_server_that_does_not_answer_is_unavailable(postgres: Server, table: str) -> None:
    port = int(postgres.url.rpartition(":")[2].partition("/")[0])
    with Cable(port) as cable:
        dsn = f"postgresql://holdfast@127.0.0.1:{cable.port}/postgres"
        source = TableSource(table, dsn=dsn, by="txid", schema="n int", timeout_seconds=6)
        reader = source.reader([])
        assert reader.next(None, None, 0) is None
        cable.cut()
        with pytest.raises(Unavailable):
            reader.next(None, None, 0)
        cable.refuse()
        with pytest.raises(Unavailable):
            reader.next(None, None, 0)
        source.check()  # nothing is wrong with it
        cable.restore()
        assert reader.next(None, None, 0) is None


REFUSALS = {
    "there is no table nowhere": ("nowhere", {}),
    "is a view; name the table": ("shown", {}),
    "has no column 'm'": ("bare", {"schema": "m int"}),
    "is integer, which cannot be read as short; declare it as int or long or string": (
        "bare", {"schema": "n short"},
    ),
    "has no column 'txid' to read it by": ("other", {}),
    "may be null, and rows without it would never be read": ("nullable", {}),
    "is not the number of the transaction": ("plain", {}),
    "a row may appear below one that was read": ("bare", {"by": "id"}),
    "cannot be read from Postgres; use": ("bare", {"schema": "n array<int>"}),
    "may not read table closed; GRANT SELECT": ("closed", {}),
    "password authentication failed": ("bare", {"password": Secret.env("WRONG_PASSWORD")}),
    "is needed on this machine, and the environment variable NO_SUCH": (
        "bare", {"password": Secret.env("NO_SUCH")},
    ),
    'database "elsewhere" does not exist': ("bare", {"database": "elsewhere"}),
}  # fmt: skip


@pytest.fixture(scope="module")
def tables(postgres: Server) -> Server:
    with psycopg.connect(postgres.url, autocommit=True) as db:
        for statement in (
            "CREATE TABLE bare (id int NOT NULL, txid xid8 NOT NULL DEFAULT pg_current_xact_id(), n int)",
            "CREATE VIEW shown AS SELECT * FROM bare",
            "CREATE TABLE closed (LIKE bare INCLUDING ALL)",
            "CREATE TABLE other (n int)",
            "CREATE TABLE nullable (txid xid8 DEFAULT pg_current_xact_id(), n int)",
            "CREATE TABLE plain (txid xid8 NOT NULL, n int)",
            "CREATE ROLE guest LOGIN PASSWORD 'right'",
            "GRANT SELECT ON bare, shown, other, nullable, plain TO guest",
        ):
            db.execute(statement)
    return postgres


@pytest.mark.parametrize("told", REFUSALS)
def test_what_can_never_be_read_is_refused_in_one_line_before_spark_starts(
    tables: Server, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WRONG_PASSWORD", "not-this-one")
    monkeypatch.setenv("RIGHT_PASSWORD", "right")
    name, changes = REFUSALS[told]
    database = changes.get("database", "postgres")
    how = {"by": "txid", "schema": "n int", "password": Secret.env("RIGHT_PASSWORD"), **changes}
    how.pop("database", None)
    dsn = tables.url.replace("holdfast@", "guest@").replace("/postgres", f"/{database}")
    dsn = dsn.replace(f"{database}ql:", "postgresql:")
    with pytest.raises(DefinitionError) as refused:
        TableSource(name, dsn=dsn, **how).check()
    assert told in str(refused.value)
    assert "; " in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "not-this-one" not in str(refused.value)


def test_an_ordinary_user_reads_and_is_told_of_a_missing_index(
    tables: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RIGHT_PASSWORD", "right")
    dsn = tables.url.replace("holdfast@", "guest@")
    source = TableSource("bare", dsn=dsn, by="txid", schema="n int", password=Secret.env("RIGHT_PASSWORD"))
    source.check()
    reader = source.reader([])
    assert reader.next(None, None, 0) is None
    (told,) = reader.news()
    assert 'CREATE INDEX ON "bare" ("txid")' in told
    assert reader.news() == []


def test_a_password_in_the_dsn_is_refused() -> None:
    with pytest.raises(DefinitionError, match="holds a password") as refused:
        TableSource("t", dsn="postgresql://anna:geheim@127.0.0.1/x", by="txid", schema="n int")
    assert "geheim" not in str(refused.value)


def test_a_server_that_crashes_is_waited_for_and_read_on(tmp_path: Any) -> None:
    with PostgresDirectory() as directory:
        with directory.running() as server:
            with psycopg.connect(directory.url, autocommit=True) as db:
                table = new_table(db)
                add(db, table, 1)
            reader = TableSource(table, dsn=directory.url, by="txid", schema="n int").reader([])
            found, after = read(reader)
            server.signal(signal.SIGKILL)
            wait_until(lambda: server.process.poll() is not None, "the server to be gone")
            with pytest.raises(Unavailable):
                reader.next(after, None, 0)
        with directory.running(), psycopg.connect(directory.url, autocommit=True) as db:
            add(db, table, 2)
            assert read(reader, after)[0] == [2]
            assert found == [1]
