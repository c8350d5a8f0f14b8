"""Savepoints made of DataFrames, edited and converted: jobs that start from them go on from that state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, lit
from typer.testing import CliRunner

import holdfast as hf
from holdfast.cli.main import app
from holdfast.runtime.savepoints.savepoint import Savepoint
from tests.spark.jobs import ROWS, expected_totals, run, sequence_job


class Basket(hf.KeyedFunction):
    """A state of every kind."""

    output = "shop string, user string, total long"
    total = hf.ValueState("long", default=0)
    note = hf.ValueState("string", default="none yet")
    items = hf.ListState("string")
    seen = hf.MapState("string", "long")

    def process(self, row: Any, ctx: Any) -> Any:
        self.total.value += row.amount
        self.items.append(f"i{row.amount}")
        self.seen[str(row.amount)] = row.amount
        if row.amount == 0:
            self.note.value = None
        yield row.shop, row.user, self.total.value


def basket_job(rows: list[Any]) -> tuple[hf.Job, hf.MemorySink]:
    job, sink = hf.Job("baskets"), hf.MemorySink()
    source = hf.MemorySource(rows, schema="shop string, user string, amount long")
    keyed = job.source(source, uid="rows").key_by("shop", "user").process(Basket(), uid="basket")
    keyed.sink(sink, uid="out")
    return job, sink


def rows_of(savepoint: Savepoint, spark: SparkSession, uid: str) -> set[Any]:
    frame = savepoint.read(spark, uid)
    columns = [c for c in frame.columns if c != "key_group"]
    return {repr(row.asDict(recursive=True)) for row in frame.select(columns).collect()}


BASKETS = "shop string, user string, total long, note string, items array<string>, seen map<string,bigint>"


def test_a_job_goes_on_from_state_that_was_written_for_it(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.createDataFrame(
        [(f"u{i}", 10 + i, 1000 * i) for i in range(7)], "user string, seen long, total long"
    )
    job = sequence_job(ROWS, hf.MemorySink())
    made = Savepoint.write(
        str(tmp_path / "sp"), job, {"sequence": frame}, spark=spark, key_groups=16, parallelism=3
    )
    assert (made.epoch, made.key_groups, made.record.format) == (1, 16, "canonical")
    assert made.operators == {"sequence": "`user` string, `seen` long, `total` long, `key_group` int"}
    assert made.verify() == []
    sink = hf.MemorySink()
    run(sequence_job(ROWS, sink), spark, tmp_path / "ck", key_groups=16, from_savepoint=str(tmp_path / "sp"))
    last: dict[str, tuple[int, int]] = {}
    for user, seq, total in sink.rows():
        last[user] = max(last.get(user, (0, 0)), (seq, total))
    assert last == {
        user: (seen + 10 + int(user[1:]), total + 1000 * int(user[1:]))
        for user, (seen, total) in expected_totals().items()
    }


def test_every_kind_of_state_is_written_and_read_back(spark: SparkSession, tmp_path: Path) -> None:
    told = [
        ("a", "x" * 700, 5, None, ["p", "q"], {"m": 1}),
        ("a", None, None, "n", None, {}),
        (None, "u", 7, "n", [], {"k" * 300: 2, "j": 3}),
    ]
    frame = spark.createDataFrame(told, BASKETS)
    job, _ = basket_job([])
    made = Savepoint.write(str(tmp_path / "sp"), job, {"basket": frame}, spark=spark)
    back = {
        (r.shop, r.user): (r.total, r.note, r["items"], r.seen) for r in made.read(spark, "basket").collect()
    }
    assert back == {
        ("a", "x" * 700): (5, None, ["p", "q"], {"m": 1}),
        ("a", None): (None, "n", None, None),
        (None, "u"): (7, "n", None, {"k" * 300: 2, "j": 3}),
    }


def test_plain_tools_read_a_canonical_savepoint(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.createDataFrame(
        [(f"u{i}", i, 2 * i) for i in range(50)], "user string, seen long, total long"
    )
    job = sequence_job([], hf.MemorySink())
    Savepoint.write(str(tmp_path / "sp"), job, {"sequence": frame}, spark=spark, parallelism=2)
    files = str(tmp_path / "sp" / "data" / "*" / "*.parquet")
    by_duckdb = duckdb.sql(f"select key.user, total from '{files}' where state = 'total'").fetchall()
    assert dict(by_duckdb) == {f"u{i}": 2 * i for i in range(50)}
    parts = [pd.read_parquet(path) for path in Path(tmp_path / "sp").glob("data/*/*.parquet")]
    by_pandas = pd.concat(parts).query("state == 'total'")
    assert dict(zip((key["user"] for key in by_pandas.key), by_pandas.total, strict=True)) == dict(by_duckdb)


def test_mistakes_are_told_all_at_once_and_leave_nothing(spark: SparkSession, tmp_path: Path) -> None:
    job, _ = basket_job([])
    wrong = spark.createDataFrame([("a", 1, "x", 2)], "shop string, user long, note string, colour int")
    with pytest.raises(hf.DefinitionError) as refused:
        Savepoint.write(str(tmp_path / "sp"), job, {"basket": wrong}, spark=spark)
    for text in (
        "'user' is long, not string", "'total' (long) is missing", "'items' (array<string>) is missing",
        "'seen' (map<string,long>) is missing", "'colour' is none of its",
    ):  # fmt: skip
        assert text in str(refused.value)
    with pytest.raises(hf.DefinitionError, match="no operator 'other'; there are: 'basket'"):
        Savepoint.write(str(tmp_path / "sp"), job, {"other": wrong}, spark=spark)
    with pytest.raises(hf.DefinitionError, match="no source 'elsewhere'; there are: 'rows'"):
        Savepoint.write(str(tmp_path / "sp"), job, {}, spark=spark, positions={"elsewhere": 1})
    twice = spark.createDataFrame([("a", "u", 1, None, None, None)] * 2, BASKETS)
    with pytest.raises(hf.DefinitionError, match="shop='a', user='u' more than once"):
        Savepoint.write(str(tmp_path / "sp"), job, {"basket": twice}, spark=spark)
    assert not list((tmp_path / "sp").rglob("*.parquet"))
    with pytest.raises(hf.RestoreError):
        Savepoint.open(str(tmp_path / "sp"))
    Savepoint.write(str(tmp_path / "sp"), job, {}, spark=spark, positions={"rows": 3})
    assert Savepoint.open(str(tmp_path / "sp")).positions == {"rows": 3}


@pytest.fixture(scope="module")
def baskets(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Savepoint:
    """A native savepoint of a job that stopped: several deltas, explicit nulls, all kinds of state."""
    place = tmp_path_factory.mktemp("baskets")
    job, _ = basket_job([(f"s{i % 3}", f"u{i % 11}", i % 17) for i in range(200)])
    run(job, spark, place / "ck", key_groups=16, parallelism=2)
    return _saved(place)


def _saved(place: Path) -> Savepoint:
    from holdfast.checkpoint.chain.checkpoint import open_checkpoint, read_job
    from holdfast.checkpoint.savepoints.take import take_savepoint
    from holdfast.clock import SystemClock
    from holdfast.storage.urls import open_storage

    storage, clock = open_storage(str(place / "ck")), SystemClock()
    job = read_job(storage)
    checkpoint = open_checkpoint(storage, job.job, job.key_groups, clock, identity="x")
    number = checkpoint.chain.load().number
    target = open_storage(str(place / "sp"))
    take_savepoint(checkpoint, number, target, id="taken", stopped=True, clock=clock, holder="test")
    return Savepoint.open(str(place / "sp"))


def test_a_converted_savepoint_holds_the_same_in_other_key_groups(
    spark: SparkSession, tmp_path: Path, baskets: Savepoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = baskets.convert(str(tmp_path / "more"), spark, key_groups=50, parallelism=4)
    assert (made.key_groups, made.epoch, made.job) == (50, baskets.epoch, "baskets")
    assert made.positions == baskets.positions
    assert rows_of(made, spark, "basket") == rows_of(baskets, spark, "basket")
    groups = [row.key_group for row in made.read(spark, "basket").collect()]
    assert max(groups) >= 16
    back = made.convert(str(tmp_path / "back"), spark, key_groups=16)
    assert rows_of(back, spark, "basket") == rows_of(baskets, spark, "basket")
    more = [(f"s{i % 3}", f"u{i % 11}", i % 17) for i in range(260)]
    outcomes = []
    for name, savepoint in (("plain", baskets), ("converted", made)):
        job, sink = basket_job(more)
        run(job, spark, tmp_path / name, key_groups=savepoint.key_groups, from_savepoint=savepoint.url)
        outcomes.append(sorted(sink.rows()))
        with hf.StateReader(str(tmp_path / name)) as reader:
            # Stored as null, not as nothing: the default must not come back.
            assert reader.get("basket", {"shop": "s0", "user": "u0"}).values["note"] is None
    assert outcomes[0] == outcomes[1]
    assert len(outcomes[0]) == 60


def test_an_edited_savepoint_differs_just_there(
    spark: SparkSession, tmp_path: Path, baskets: Savepoint
) -> None:
    made = baskets.edit(
        str(tmp_path / "sp"),
        spark,
        {"basket": lambda frame: frame.where("shop != 's1'").withColumn("total", col("total") + lit(1))},
        positions={"rows": 200},
    )
    old = {(r.shop, r.user): r for r in baskets.read(spark, "basket").collect()}
    new = {(r.shop, r.user): r for r in made.read(spark, "basket").collect()}
    assert new.keys() == {key for key in old if key[0] != "s1"}
    assert all(new[key].total == old[key].total + 1 and new[key].seen == old[key].seen for key in new)
    assert made.positions == {"rows": 200}
    assert not made.record.stopped
    emptied = baskets.edit(str(tmp_path / "none"), spark, drop=["basket"])
    assert emptied.operators == {}
    assert emptied.verify() == []
    with pytest.raises(hf.DefinitionError, match="no operator 'other'"):
        baskets.edit(str(tmp_path / "other"), spark, {"other": lambda frame: frame})


def test_untouched_operators_are_copied_byte_for_byte(
    spark: SparkSession, tmp_path: Path, baskets: Savepoint
) -> None:
    same = baskets.edit(str(tmp_path / "same"), spark)
    assert rows_of(same, spark, "basket") == rows_of(baskets, spark, "basket")
    sums = [{delta.extent.checksum for delta in sp.record.manifest.deltas} for sp in (same, baskets)]
    assert sums[0] == sums[1]


def test_the_command_converts_a_savepoint(spark: SparkSession, tmp_path: Path, baskets: Savepoint) -> None:
    to = str(tmp_path / "sp")
    done = CliRunner().invoke(app, ["savepoints", "convert", baskets.url, to, "--key-groups", "32", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["key_groups"] == 32
    assert rows_of(Savepoint.open(to), spark, "basket") == rows_of(baskets, spark, "basket")
    again = CliRunner().invoke(app, ["savepoints", "convert", baskets.url, to, "--key-groups", "32"])
    assert again.exit_code == 4
    assert "holds a savepoint already" in again.stderr


def test_state_of_another_key_type_is_written_for_a_changed_job(
    spark: SparkSession, tmp_path: Path, baskets: Savepoint
) -> None:
    job = hf.Job("baskets")
    source = hf.MemorySource([], schema="shop string, user int, amount long")
    keyed = job.source(source, uid="rows").key_by("shop", "user").process(Basket(), uid="basket")
    keyed.sink(hf.MemorySink(), uid="out")
    rows = baskets.read(spark, "basket").withColumn("user", col("user").substr(2, 9).cast("int"))
    made = Savepoint.write(
        str(tmp_path / "sp"), job, {"basket": rows}, spark=spark, positions=baskets.positions, key_groups=16
    )
    old = {(r.shop, int(r.user[1:]), r.total) for r in baskets.read(spark, "basket").collect()}
    assert {(r.shop, r.user, r.total) for r in made.read(spark, "basket").collect()} == old
    assert made.positions == baskets.positions
