"""A sink that refuses what is committed beside one that goes on: the whole engine, and a real Postgres."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner

import holdfast as hf
from holdfast.cli.main import app
from holdfast.runtime.control.run_flags import Wishes
from holdfast.runtime.driver import Prepared
from tests.services.postgres_kit import db, postgres
from tests.services.servers import Server

__all__ = ["db", "postgres"]

DEADLINE_SECONDS = 240.0


def wait_until(handle: hf.JobHandle, condition: Callable[[], bool], what: str) -> None:
    give_up = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert handle.running, f"the run ended before {what}: {handle.status().error}"
        assert time.monotonic() < give_up, f"waited {DEADLINE_SECONDS} s for {what}"
        time.sleep(0.05)


def test_a_sink_whose_rights_were_revoked_stops_alone_and_goes_on_when_a_person_says_so(
    spark: SparkSession, postgres: Server, db: psycopg.Connection[Any], tmp_path: Path
) -> None:
    name = f"revoked_{uuid.uuid4().hex[:8]}"
    db.execute(f"CREATE TABLE {name} (id bigint)")
    db.execute(f"CREATE ROLE {name}_writer LOGIN")
    db.execute(f"GRANT CREATE ON SCHEMA public TO {name}_writer")
    db.execute(f"GRANT SELECT, INSERT ON {name} TO {name}_writer")
    alive, said = hf.MemorySink(), list[str]()
    job = hf.Job(name)
    rows = job.source(hf.GeneratorSource({"id": "id"}, schema="id long", rows_per_second=200), uid="in")
    table = hf.PostgresSink(
        name, dsn=postgres.url.replace("holdfast@", f"{name}_writer@"), marks=f"{name}_marks"
    )
    rows.sink(table, uid="table")
    rows.sink(alive, uid="alive")
    handle = job.start(
        tmp_path / "ck", spark=spark, working_dir=tmp_path / "working", restart=hf.NoRestart(),
        stop_within="5m", on_message=said.append,
    )  # fmt: skip
    assert isinstance(handle, hf.JobHandle)

    def told() -> Any:
        return handle.status().sinks.get("table", {})

    wait_until(handle, lambda: told().get("through", 0) > 0, "the table has rows")
    db.execute(f"REVOKE INSERT ON {name} FROM {name}_writer")
    wait_until(handle, lambda: told()["refused"] is not None, "the table refuses rows")
    assert re.search(r"permission denied|lacks INSERT", told()["refused"]["reason"])
    assert told()["unavailable"] is None
    stopped_at, shown = told()["through"], len(alive.rows())
    wait_until(handle, lambda: len(alive.rows()) > shown + 200, "the other sink goes on")
    wait_until(handle, lambda: told()["epochs"] > 3, "epochs wait")
    assert (told()["through"], told()["refused"]["tries"]) == (stopped_at, 1)
    text = next(text for text in said if text.startswith("REFUSED: sink 'table'"))
    command = text[text.index("`holdfast sinks retry table ") + 1 :].split("`")[0].split()

    told_in_vain(command, stopped_at)
    db.execute(f"GRANT INSERT ON {name} TO {name}_writer")
    done = CliRunner().invoke(app, [*command[1:], "--json"])
    answered = json.loads(done.stdout)
    assert answered["state"] == "done", done.output
    assert answered["result"]["epoch"] > stopped_at
    wait_until(handle, lambda: told()["refused"] is None, "it takes rows again")
    wait_until(handle, lambda: told()["epochs"] <= 1, "it has caught up")
    vain = CliRunner().invoke(app, command[1:])
    assert vain.exit_code == 2
    assert "sink 'table' waits neither for a person nor for its server" in vain.stderr
    handle.stop()
    assert handle.wait(DEADLINE_SECONDS).restarts == 0
    count = len(alive.rows())
    assert sorted(id for (id,) in alive.rows()) == list(range(count))
    assert db.execute(f"SELECT count(*), count(DISTINCT id), max(id) FROM {name}").fetchone() == (
        count, count, count - 1,
    )  # fmt: skip


def told_in_vain(command: list[str], stopped_at: int) -> None:
    """Having the sink `table` tried again says that it refuses again; it is listed so."""
    again = CliRunner().invoke(app, command[1:])
    assert again.exit_code == 1, again.output
    told = r"retry failed: it was tried, and refuses again: sink 'table' .*(denied|lacks)"
    assert re.search(told, again.stderr)
    listed = CliRunner().invoke(app, ["sinks", "list", *command[4:], "--json"])
    (table,) = (each for each in map(json.loads, listed.stdout.splitlines()) if each["sink"] == "table")
    assert (table["says"], table["shown"]) == ("run", stopped_at), listed.output
    assert table["refused"]["tries"] == 2


@pytest.mark.parametrize("refusal", ["columns", "rejects"])
def test_a_node_takes_over_while_a_sink_refuses_and_a_start_by_a_person_is_refused(
    spark: SparkSession, postgres: Server, db: psycopg.Connection[Any], tmp_path: Path, refusal: str
) -> None:
    """The sink has taken from the same code before what it refuses: all else goes on."""
    name = f"takeover_{uuid.uuid4().hex[:8]}"
    db.execute(f"CREATE TABLE {name} (id bigint)")
    db.execute(f"CREATE ROLE {name}_writer LOGIN")
    db.execute(f"CREATE SCHEMA {name}_own")
    db.execute(f"GRANT USAGE, CREATE ON SCHEMA {name}_own TO {name}_writer")
    db.execute(f"GRANT SELECT, INSERT ON {name} TO {name}_writer")
    alive, said = hf.MemorySink(), list[str]()

    def declared(change: Callable[[DataFrame], DataFrame] | None = None) -> hf.Job:
        job = hf.Job(name)
        rows = job.source(hf.GeneratorSource({"id": "id"}, schema="id long", rows_per_second=200), uid="in")
        rows = rows.transform(change) if change is not None else rows
        dsn = postgres.url.replace("holdfast@", f"{name}_writer@")
        marks, rejects = f"{name}_own.marks", f"{name}_own.rejects"
        rows.sink(hf.PostgresSink(name, dsn=dsn, marks=marks, rejects=rejects), uid="table")
        rows.sink(alive, uid="alive")
        return job

    given: Any = {"working_dir": tmp_path / "working", "restart": hf.NoRestart(), "stop_within": "1s"}

    def taken_over(job: hf.Job) -> hf.JobHandle:
        return job.start_as(
            Wishes(), tmp_path / "ck", spark, None, said.append, given, Prepared(owner="the next node")
        )

    handle = declared().start(tmp_path / "ck", spark=spark, on_message=said.append, **given)
    assert isinstance(handle, hf.JobHandle)
    wait_until(handle, lambda: handle.status().sinks.get("table", {}).get("through", 0) > 0, "it has rows")
    if refusal == "columns":
        right, lacks = f"INSERT ON {name}", "lacks INSERT"
        db.execute(f"REVOKE {right} FROM {name}_writer")
        wait_until(handle, lambda: handle.status().sinks["table"]["refused"] is not None, "it refuses rows")
    handle.stop()
    with pytest.raises(hf.Unpublished) if refusal == "columns" else suppress(hf.Unpublished):
        handle.wait(DEADLINE_SECONDS)
    if refusal == "rejects":
        right, lacks = f"CREATE ON SCHEMA {name}_own", f"no table {name}_own.rejects"
        db.execute(f"REVOKE {right} FROM {name}_writer")
        db.execute(f"DROP TABLE {name}_own.rejects")

    with pytest.raises(hf.DefinitionError, match=lacks):
        declared().start(tmp_path / "ck", spark=spark, **given)
    with pytest.raises(hf.DefinitionError, match=lacks):
        taken_over(declared(lambda rows: rows.where("id >= 0"))).wait(DEADLINE_SECONDS)
    shown = len(alive.rows())
    next_run = taken_over(declared())
    wait_until(next_run, lambda: len(alive.rows()) > shown + 200, "the other sink goes on")
    wait_until(next_run, lambda: next_run.status().sinks["table"]["refused"] is not None, "it is shown so")
    db.execute(f"GRANT {right} TO {name}_writer")
    next_run.retry("table")
    wait_until(next_run, lambda: next_run.status().sinks["table"]["epochs"] <= 1, "it has caught up")
    next_run.stop()
    next_run.wait(DEADLINE_SECONDS)
    count = len(alive.rows())
    assert sorted(id for (id,) in alive.rows()) == list(range(count))
    assert db.execute(f"SELECT count(*), count(DISTINCT id) FROM {name}").fetchone() == (count, count)


def test_a_running_job_is_rescaled_while_the_server_of_a_sink_lets_nobody_in(
    spark: SparkSession, postgres: Server, db: psycopg.Connection[Any], tmp_path: Path
) -> None:
    """All sinks are asked again then; this run knows by its commits what that one shows."""
    name = f"rescaled_{uuid.uuid4().hex[:8]}"
    db.execute(f"CREATE SCHEMA {name}")
    db.execute(f"CREATE TABLE {name}.rows (id bigint)")
    db.execute(f"CREATE ROLE {name}_writer LOGIN")
    db.execute(f"GRANT USAGE, CREATE ON SCHEMA {name} TO {name}_writer")
    db.execute(f"GRANT SELECT, INSERT ON {name}.rows TO {name}_writer")
    alive, job = hf.MemorySink(), hf.Job(name)
    rows = job.source(hf.GeneratorSource({"id": "id"}, schema="id long", rows_per_second=200), uid="in")
    dsn = postgres.url.replace("holdfast@", f"{name}_writer@")
    rows.sink(hf.PostgresSink(f"{name}.rows", dsn=dsn, marks=f"{name}.marks"), uid="table")
    rows.sink(alive, uid="alive")
    handle = job.start(
        tmp_path / "ck", spark=spark, parallelism=2, working_dir=tmp_path / "working", restart=hf.NoRestart()
    )
    assert isinstance(handle, hf.JobHandle)
    wait_until(handle, lambda: handle.status().sinks.get("table", {}).get("through", 0) > 0, "it has rows")
    db.execute(f"REVOKE USAGE ON SCHEMA {name} FROM {name}_writer")
    handle.rescale(1)
    wait_until(handle, lambda: handle.status().parallelism == 1, "it is rescaled")
    shown = len(alive.rows())
    wait_until(handle, lambda: len(alive.rows()) > shown + 200, "the other sink goes on")
    wait_until(handle, lambda: handle.status().sinks["table"]["refused"] is not None, "it is shown so")
    db.execute(f"GRANT USAGE ON SCHEMA {name} TO {name}_writer")
    handle.retry("table")
    wait_until(handle, lambda: handle.status().sinks["table"]["epochs"] <= 1, "it has caught up")
    handle.stop()
    handle.wait(DEADLINE_SECONDS)
    count = len(alive.rows())
    assert db.execute(f"SELECT count(*), count(DISTINCT id) FROM {name}.rows").fetchone() == (count, count)
