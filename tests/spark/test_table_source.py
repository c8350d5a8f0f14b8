"""Tables of a real Postgres on a real Spark: their frames, and a job that reads while others write."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.cli.load_job import load_job
from holdfast.testing import conformance
from tests.contract.test_sources import NEED_SPARK
from tests.services.postgres_kit import postgres
from tests.services.servers import Server
from tests.services.test_table_source import add, new_table

__all__ = ["postgres"]

WRITERS, TRANSACTIONS = 4, 25


def test_it_keeps_what_is_promised_about_its_rows(spark: SparkSession, postgres: Server) -> None:
    with psycopg.connect(postgres.url, autocommit=True) as db:
        table = new_table(db)
        for number in range(6):
            add(db, table, 2 * number, 2 * number + 1)
        report = conformance.check_source(
            lambda: hf.TableSource(table, dsn=postgres.url, by=("txid", "id"), schema="id long, n int"),
            spark=spark,
            vanish=lambda: db.execute(f"DELETE FROM {table} WHERE n = 5"),
            only=NEED_SPARK,
        )
    assert NEED_SPARK - set(report.kept) == {"verify"}


def test_a_job_counts_every_row_of_writers_that_commit_late_and_out_of_order(
    spark: SparkSession, postgres: Server, tmp_path: Path
) -> None:
    with psycopg.connect(postgres.url, autocommit=True) as db:
        table = new_table(db)
    sink = hf.MemorySink()
    job = hf.Job("late")
    rows = job.source(hf.TableSource(table, dsn=postgres.url, by="txid", schema="id long, n int"), uid="rows")
    rows.sink(sink, uid="out")
    writers = [threading.Thread(target=_write_late, args=(postgres.url, table, i)) for i in range(WRITERS)]
    handle = job.start(tmp_path / uuid.uuid4().hex, spark=spark)
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    handle.stop(drain=True)
    handle.wait()
    found = sorted(n for _, n in sink.rows())
    assert found == list(range(WRITERS * TRANSACTIONS))


def test_the_example(
    spark: SparkSession, postgres: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POSTGRES_DSN", postgres.url)
    path = Path(__file__).parents[2] / "examples" / "postgres_orders.py"
    statements = path.read_text().split('"""')[1].partition("CREATE")[2].rpartition(";")[0]
    with psycopg.connect(postgres.url, autocommit=True) as db:
        db.execute(f"CREATE{statements}")
        db.execute("INSERT INTO orders (\"user\", amount) VALUES ('anna', 5), ('ben', 1), ('anna', 7)")
        for _ in range(2):
            load_job(path).run(
                tmp_path / "ck", spark=spark, until="exhausted", working_dir=tmp_path / "working"
            )
            db.execute("INSERT INTO orders (\"user\", amount) VALUES ('cleo', 1)")
        found = db.execute("SELECT * FROM totals ORDER BY 1").fetchall()
    assert found == [("anna", 2, 12), ("ben", 1, 1), ("cleo", 1, 1)]


def _write_late(url: str, table: str, writer: int) -> None:
    """Transactions that overlap: each is committed only when the next one has taken its number."""
    before: psycopg.Connection[tuple[object, ...]] | None = None
    for number in range(TRANSACTIONS):
        connection = psycopg.connect(url)
        add(connection, table, writer * TRANSACTIONS + number)
        if before is not None:
            before.commit()
            before.close()
        before = connection
    assert before is not None
    before.commit()
    before.close()
