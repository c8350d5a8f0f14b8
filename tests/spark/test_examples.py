"""Every example runs to its end and says what it promises."""

from __future__ import annotations

import json
import re
import runpy
import sqlite3
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.cli.load_job import load_job
from holdfast.testing import Harness

EXAMPLES = Path(__file__).parents[2] / "examples"
LINES_MAX = 60


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Examples read and write below the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", "")
    return tmp_path


def run(name: str, spark: SparkSession, **options: Any) -> None:
    here = Path.cwd()
    load_job(EXAMPLES / name).run(
        here / "ck", spark=spark, until="exhausted", working_dir=here / "working", **options
    )


def json_rows(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in sorted(directory.glob("*.json")) for line in file.open()]


def test_total_length(place: Path, spark: SparkSession) -> None:
    (place / "in").mkdir()
    first, second = place / "in" / "1.json", place / "in" / "2.json"
    first.write_text('{"user": "anna", "word": "holdfast"}\n{"user": "ben", "word": null}\n')
    run("total_length.py", spark)
    second.write_text('{"user": "anna", "word": "kelp"}\n')
    run("total_length.py", spark)
    totals = [
        row
        for file in sorted((place / "out").glob("*.parquet"))
        for row in pq.ParquetFile(file).read().to_pylist()
    ]
    assert totals == [{"user": "anna", "total": 8}, {"user": "anna", "total": 12}]


def test_page_views(place: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    run("page_views.py", spark, guarantee="at-least-once")
    newest = {row["page"]: row for row in json_rows(place / "out" / "pages")}
    assert sum(row["views"] for row in newest.values()) == 5_000
    assert all(100 <= row["average"] <= row["slowest"] < 1_000 for row in newest.values())
    assert "console, epoch 1" in capsys.readouterr().out


def test_dead_letters(place: Path, spark: SparkSession) -> None:
    run("dead_letters.py", spark)
    newest = {row["account"]: row["balance"] for row in json_rows(place / "out" / "balances")}
    assert newest == {"anna": 15, "ben": 7}
    errors = [row["error"] for row in json_rows(place / "out" / "dead")]
    assert len(errors) == 2
    assert all("ValueError" in error for error in errors)


def test_two_operators(place: Path, spark: SparkSession) -> None:
    run("two_operators.py", spark)
    newest = {row["level"]: row["users"] for row in json_rows(place / "out" / "levels")}
    assert newest == {1: 100, 10: 100}


def test_saved_keys(place: Path, spark: SparkSession) -> None:
    run("saved_keys.py", spark)
    newest = {row["visitor"]: row["visits"] for row in json_rows(place / "out" / "visits")}
    assert newest == dict.fromkeys(range(50), 20)
    with sqlite3.connect(place / "states.db") as db:
        assert db.execute("SELECT count(*) FROM saves WHERE operator = 'visits'").fetchone() == (50,)


def test_outliers(place: Path, spark: SparkSession) -> None:
    run("outliers.py", spark, max_rows_per_epoch=2_000)
    (outlier,) = json_rows(place / "out" / "outliers")
    assert (outlier["sensor"], outlier["reading"]) == (0, 500.0)
    assert 20.5 < outlier["mean"] < 21.5


def test_word_count(place: Path, spark: SparkSession) -> None:
    run("word_count.py", spark)
    windows = json_rows(place / "out" / "word-count")
    assert sum(row["n"] for row in windows) == 5_000 * 5, "every word in the five windows that it is in"
    assert len({(row["word"], row["window_start"]) for row in windows}) == len(windows)


def test_sessions(place: Path, spark: SparkSession) -> None:
    run("sessions.py", spark, max_rows_per_epoch=1_000)
    newest: dict[Any, Any] = {}
    for row in sorted(
        json_rows(place / "out" / "sessions"), key=lambda row: (row["revision"], not row["deleted"])
    ):
        key = row["user"], row["window_start"], row["window_end"]
        if row["deleted"]:
            del newest[key]
        else:
            newest[key] = row["clicks"]
    assert sum(newest.values()) == 5_000


def test_top_pages(place: Path, spark: SparkSession) -> None:
    run("top_pages.py", spark)
    minutes: dict[str, list[int]] = {}
    for row in sorted(json_rows(place / "out" / "top-pages"), key=lambda row: row["place"]):
        minutes.setdefault(row["minute"], []).append(row["views"])
    assert len(minutes) == 5, "5,000 views, 20 a second"
    assert all(len(views) == 3 and views == sorted(views, reverse=True) for views in minutes.values())


def test_deduplicate(place: Path, spark: SparkSession) -> None:
    run("deduplicate.py", spark, max_rows_per_epoch=1_500)
    assert sorted(row["event"] for row in json_rows(place / "out" / "once")) == list(range(2_000))


def test_trending(place: Path, spark: SparkSession) -> None:
    run("trending.py", spark, max_rows_per_epoch=2_500)
    shown = json_rows(place / "out" / "trending")
    last = {row["place"]: row["n"] for row in shown}
    assert sorted(last) == list(range(1, 11))
    assert [last[n] for n in range(1, 11)] == sorted(last.values(), reverse=True)


def test_lake_orders(place: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = {
        "py-catalog-impl": "tests.contract.sqlite_catalog.SqliteCatalog",
        "uri": str(place / "catalog.db"),
        "warehouse": f"file://{place}/warehouse",
    }
    monkeypatch.setattr(hf.IcebergSink, "_open", lambda sink: load_catalog(sink.catalog, **catalog))
    run("lake_orders.py", spark, max_rows_per_epoch=1_000)
    orders = DeltaTable(place / "out" / "orders").to_pyarrow_table()
    assert orders.num_rows == 3_000
    totals = load_catalog("default", **catalog).load_table("shop.totals").scan().to_pandas()
    newest = totals.sort_values("orders").groupby("user").last()
    assert newest["total"].sum() == sum(orders["amount"].to_pylist())


def test_examples_are_short_and_all_of_them_are_run() -> None:
    names = {path.name for path in EXAMPLES.glob("*.py")}
    assert names == {
        "total_length.py", "page_views.py", "dead_letters.py", "two_operators.py", "saved_keys.py",
        "outliers.py", "word_count.py", "sessions.py", "top_pages.py", "ad_clicks.py", "deduplicate.py",
        "fraud.py",
        "trending.py", "lake_orders.py", "redis_orders.py", "rabbit_orders.py", "socket_words.py",
        "postgres_orders.py", "kafka_orders.py", "search_orders.py",
    }  # fmt: skip
    long = [path.name for path in EXAMPLES.glob("*.py") if len(path.read_text().splitlines()) >= LINES_MAX]
    assert not long


@pytest.mark.parametrize("name", ["write-a-function.md", "event-time.md"])
def test_the_guide(name: str, place: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first job of the page, crash included; its last line asserts what it shows."""
    page = (EXAMPLES.parent / "docs" / "how-to" / name).read_text()
    first, second = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)[:2]
    assert "job.run(" in second
    run_job, messages = hf.Job.run, list[str]()
    here: dict[str, Any] = {"spark": spark, "working_dir": place / "working", "on_message": messages.append}
    monkeypatch.setattr(hf.Job, "run", lambda job, **options: run_job(job, **options, **here))
    exec(compile(first + second, name, "exec"), {"__name__": "__main__"})
    assert any("SimulatedCrash" in message for message in messages)


def test_the_harness_says_what_the_job_does(place: Path, spark: SparkSession) -> None:
    payments: list[Any] = [
        ("anna", "10"),
        ("ben", "seven"),
        hf.CRASH,
        ("anna", "5"),
        ("ben", "7"),
        ("anna", ""),
    ]
    names = runpy.run_path(str(EXAMPLES / "dead_letters.py"))
    shown, dead, job = hf.MemorySink(), hf.MemorySink(), hf.Job("same")
    rows = job.source(hf.MemorySource(payments, schema="account string, amount string"), uid="in")
    balances = rows.key_by("account").process(names["Balance"](), uid="balances", on_error="dead-letter")
    balances.sink(shown, uid="out")
    balances.dead_letters().sink(dead, uid="dead")
    job.run(place / "ck", spark=spark, until="exhausted", working_dir=place / "working")

    harness = Harness.of(job, "balances")
    for epoch in (payments[:2], payments[3:]):
        harness.send(*epoch)
        harness.crash()
    assert sorted(harness.outputs) == sorted(shown.rows())
    assert sorted(harness.dead_letters) == sorted(dead.rows())
    with hf.StateReader(str(place / "ck")) as reader:
        assert {key: harness.state(key) for key in harness.keys} == {
            key: reader.get("balances", key).values for key in ("anna", "ben")
        }


def test_ad_clicks(place: Path, spark: SparkSession) -> None:
    run("ad_clicks.py", spark)
    rows = json_rows(place / "out" / "ads")
    assert sorted(row["ad"] for row in rows) == list(range(2_000)), "each ad once: it has one click at most"
    clicked = [row for row in rows if row.get("at") is not None]
    assert 200 < len(clicked) < 450, "of every fourth ad, two clicks of three come within the minute"
    assert all(row["ts"] <= row["at"] for row in clicked)
    assert json_rows(place / "out" / "late") == []


def test_fraud(place: Path, spark: SparkSession) -> None:
    run("fraud.py", spark, max_rows_per_epoch=1_500)
    rows = json_rows(place / "out" / "fraud")
    assert Counter(row["card"] for row in rows) == {3: 10, 27: 10}, "card 7 waits longer than its rule says"
    assert all(row["small"] < row["large"] for row in rows)
