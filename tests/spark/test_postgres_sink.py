"""A job into tables of a real Postgres: small epochs by the driver, large ones by tasks, each row once."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from tests.services.postgres_kit import db, postgres
from tests.services.servers import Server

__all__ = ["db", "postgres"]

USERS = 7


def totals_job(url: str, name: str, total: int, **how: Any) -> hf.Job:
    """Every row into `name`_rows, and the newest total of every user into `name`_totals."""
    job = hf.Job(name)
    rows = job.source(
        hf.GeneratorSource(
            {"id": "id", "user": f"concat('u', id % {USERS})", "text": "repeat(cast(rnd as string), 4)"},
            schema="id long, user string, text string",
            total=total,
        ),
        uid="in",
    )
    rows.sink(hf.PostgresSink(f"{name}_rows", dsn=url, **how), uid="rows")
    rows.key_by("user").aggregate(n=hf.count(), uid="totals").sink(
        hf.PostgresSink(f"{name}_totals", dsn=url, mode="upsert", key="user"), uid="totals-out"
    )
    return job


def create(db: psycopg.Connection[Any], name: str) -> None:
    db.execute(f'CREATE TABLE {name}_rows (id bigint, "user" text, text text)')
    db.execute(f'CREATE TABLE {name}_totals ("user" text PRIMARY KEY, n bigint)')


def test_rows_and_newest_totals_are_there_once_over_two_runs(
    spark: SparkSession, postgres: Server, db: psycopg.Connection[Any], tmp_path: Path
) -> None:
    name = f"small_{uuid.uuid4().hex[:8]}"
    create(db, name)
    for total in (700, 1_400):
        job = totals_job(postgres.url, name, total)
        job.run(
            tmp_path / "ck", spark=spark, until="exhausted", max_rows_per_epoch=300,
            working_dir=tmp_path / "working",
        )  # fmt: skip
    assert db.execute(f"SELECT count(*), count(DISTINCT id) FROM {name}_rows").fetchone() == (1_400, 1_400)
    assert db.execute(f"SELECT count(*), min(n), max(n) FROM {name}_totals").fetchone() == (USERS, 200, 200)


def test_a_table_that_was_made_again_ends_the_start_and_goes_on_when_a_person_says_so(
    spark: SparkSession, postgres: Server, db: psycopg.Connection[Any], tmp_path: Path
) -> None:
    name = f"again_{uuid.uuid4().hex[:8]}"
    create(db, name)

    def run(total: int) -> None:
        totals_job(postgres.url, name, total).run(
            tmp_path / "ck", spark=spark, until="exhausted", max_rows_per_epoch=300,
            working_dir=tmp_path / "working", restart=hf.NoRestart(),
        )  # fmt: skip

    run(700)
    db.execute(f"DROP TABLE {name}_rows, {name}_totals")
    create(db, name)
    for uid in ("rows", "totals-out"):
        with pytest.raises(
            hf.SinkWentBack, match=f"sink '{uid}' had shown .* epochs up to 3: .* is go"
        ) as gone:
            run(1_400)
        db.execute(str(gone.value).rpartition("go on in it with ")[2])
    run(1_400)
    found = db.execute(f"SELECT count(*), count(DISTINCT id), min(id) FROM {name}_rows").fetchone()
    assert found == (700, 700, 700)
    assert db.execute(f"SELECT count(*), min(n), max(n) FROM {name}_totals").fetchone() == (USERS, 200, 200)


def test_large_epochs_are_written_by_tasks_with_the_same_result(
    spark: SparkSession, postgres: Server, db: psycopg.Connection[Any], tmp_path: Path
) -> None:
    name = f"large_{uuid.uuid4().hex[:8]}"
    create(db, name)
    db.execute(f"ALTER TABLE {name}_rows ADD COLUMN who text DEFAULT current_setting('application_name')")
    total = 140_000
    totals_job(postgres.url, name, total).run(
        tmp_path / "ck", spark=spark, until="exhausted", max_rows_per_epoch=70_000,
        working_dir=tmp_path / "working",
    )  # fmt: skip
    assert db.execute(f"SELECT count(*), count(DISTINCT id) FROM {name}_rows").fetchone() == (total, total)
    assert db.execute(f"SELECT sum(n) FROM {name}_totals").fetchone() == (total,)
    lanes = db.execute(f"SELECT count(DISTINCT who) FROM {name}_rows").fetchone()
    assert lanes is not None
    assert lanes[0] > 1, "several lanes, each of which says who writes it"


def test_a_row_that_the_table_refuses_is_set_aside_and_the_job_goes_on(
    spark: SparkSession, postgres: Server, db: psycopg.Connection[Any], tmp_path: Path
) -> None:
    name = f"strict_{uuid.uuid4().hex[:8]}"
    create(db, name)
    db.execute(f"ALTER TABLE {name}_rows ADD CHECK (id <> 13)")
    said: list[str] = []
    totals_job(postgres.url, name, 100, rejects=f"{name}_rejects").run(
        tmp_path / "ck", spark=spark, until="exhausted", on_message=said.append,
        working_dir=tmp_path / "working",
    )  # fmt: skip
    assert db.execute(f"SELECT count(*) FROM {name}_rows").fetchone() == (99,)
    assert db.execute(
        f"SELECT count(*) FROM {name}_rejects WHERE data LIKE '%%\"id\": 13,%%'"
    ).fetchone() == (1,)
    assert any("where refused rows go" in text for text in said), said
