"""Rows that tasks read without Spark are the rows that Spark reads, and come to the same state."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from holdfast.runtime import spark_session
from holdfast.runtime.epoch import combining, reading_tasks
from holdfast.runtime.epoch.reading_tasks import ReadingTasks
from holdfast.runtime.epoch.runner import EpochRunner
from holdfast.testing import conformance
from tests.spark.jobs import run

KEYS = (
    "flag boolean, small int, text string, raw binary, day date, at timestamp, there timestamp_ntz, "
    "price decimal(12,3), share double, pair struct<a: int, b: string>, list array<long>"
)
SCHEMA = f"{KEYS}, amount long"
FILES, ROWS = 4, 60

Ways = list[str]


class Described(hf.BatchFunction):
    """Counts the rows of a key, and says what columns it was given."""

    output = "seen long, total long, columns string"
    seen = hf.ValueState("long", default=0)
    total = hf.ValueState("long", default=0)

    def process(self, rows: pa.Table, ctx: Any) -> pa.Table:
        seen, total = self.seen.column.to_pylist(), self.total.column.to_pylist()
        for key, amount in zip(ctx.key_index.tolist(), rows["amount"].to_pylist(), strict=True):
            seen[key], total[key] = seen[key] + 1, total[key] + amount
        self.seen.column, self.total.column = pa.array(seen, pa.int64()), pa.array(total, pa.int64())
        columns = str([(field.name, str(field.type)) for field in rows.schema])
        return pa.table({"seen": seen, "total": total, "columns": [columns] * len(seen)})


class Again(hf.KeyedFunction):
    """Reads what another operator gave out."""

    output = "seen long, rows long"
    rows = hf.ValueState("long", default=0)

    def process(self, row: Any, ctx: Any) -> Any:
        self.rows.value += 1
        yield row.seen, self.rows.value


def rows_of(number: int) -> list[dict[str, Any]]:
    found = []
    for row in range(ROWS):
        n = (row * 7 + number) % 13
        there = datetime(2024, 2, n + 1, 3, 4, 5, 678_901)
        found.append(
            {
                "flag": [True, False, None][n % 3],
                "small": n - 6,
                "text": None if n == 5 else f"naïve {n}" * n,
                "raw": bytes(range(n)),
                "day": date(2024, 1, n + 1),
                "at": there.replace(tzinfo=UTC),
                "there": there,
                "price": Decimal(n - 6) / 8,
                "share": (n - 6) / 4 * (0.0 if n == 6 else 1.0),
                "pair": {"a": n, "b": None if n % 2 else str(n)},
                "list": list(range(n % 4)),
                "amount": row,
            }
        )
    return found


def write(directory: Path, spark: SparkSession) -> Path:
    directory.mkdir()
    schema = spark.createDataFrame([], SCHEMA).toArrow().schema
    for number in range(FILES):
        table = pa.Table.from_pylist(rows_of(number), schema)
        pq.write_table(table, directory / f"{number}.parquet", row_group_size=25)
    return directory


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Ways:
    """How the jobs of epochs were run."""
    taken: Ways = []

    def told(way: str, original: Any) -> Any:
        def job(self: Any, *given: Any) -> DataFrame:
            taken.append(f"{way}, few" if way == "tasks" and given[2] else way)
            frame: DataFrame = original(self, *given)
            return frame

        return job

    monkeypatch.setattr(ReadingTasks, "_operator_job", told("tasks", ReadingTasks._operator_job))
    monkeypatch.setattr(EpochRunner, "_operator_job", told("Spark", EpochRunner._operator_job))
    return taken


def key_names() -> Iterator[str]:
    yield from (part.split()[0] for part in KEYS.replace("struct<a: int, b: string>", "struct").split(", "))


def chained(directory: Path, key: str, *, by_spark: bool) -> tuple[hf.Job, hf.MemorySink, hf.MemorySink]:
    job, first, second = hf.Job("read"), hf.MemorySink(), hf.MemorySink()
    rows = job.source(hf.FileSource(directory, format="parquet", schema=SCHEMA), uid="in")
    if by_spark:
        rows = rows.transform(lambda frame: frame)
    described = rows.key_by(key).process_batch(Described(), uid="described")
    described.sink(first, uid="first")
    if by_spark:
        described = described.transform(lambda frame: frame)
    described.key_by("seen").process(Again(), uid="again").sink(second, uid="second")
    return job, first, second


class Failing(hf.KeyedFunction):
    output = "seen long"

    def process(self, row: Any, ctx: Any) -> Any:
        raise LookupError("no such thing")
        yield


def failing(directory: Path) -> hf.Job:
    job = hf.Job("failing")
    rows = job.source(hf.FileSource(directory, format="parquet", schema=SCHEMA), uid="in")
    rows.key_by("small").process(Failing(), uid="fails").sink(hf.MemorySink(), uid="out")
    return job


@pytest.mark.parametrize("key", list(key_names()))
def test_all_ways_give_the_same(
    key: str, spark: SparkSession, tmp_path: Path, ways: Ways, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, found = write(tmp_path / "in", spark), {}
    for name in ("few", "packed", "Spark"):
        if name == "packed":
            monkeypatch.setattr(reading_tasks, "FEW_ROWS", 0)
        job, first, second = chained(directory, key, by_spark=name == "Spark")
        run(job, spark, tmp_path / name / "checkpoint", max_rows_per_epoch=ROWS)
        found[name] = [sorted(map(str, sink.table().to_pylist())) for sink in (first, second)]
    assert found["few"] == found["Spark"]
    assert found["packed"] == found["Spark"]
    assert len(found["Spark"][0]) > 2 * FILES
    both = 2 * FILES
    assert ways == ["tasks, few"] * both + ["tasks"] * both + ["Spark"] * both


@pytest.mark.parametrize("few", [reading_tasks.FEW_ROWS, 0])
def test_rows_of_a_channel_are_read_the_same_by_tasks_and_by_spark(
    few: int, spark: SparkSession, tmp_path: Path, ways: Ways, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, found = write(tmp_path / "in", spark), []
    monkeypatch.setattr(reading_tasks, "FEW_ROWS", few)
    for by_spark in (False, True):
        job, sink = hf.Job("sent"), hf.MemorySink()
        source = hf.FileSource(directory, format="parquet", schema=SCHEMA)
        rows = job.source(source, uid="in").into(job.part("reader"), uid="way")
        if by_spark:
            rows = rows.transform(lambda frame: frame)
        rows.key_by("text").process_batch(Described(), uid="described").sink(sink, uid="out")
        run(job, spark, tmp_path / str(by_spark))
        last = {row["columns"]: 0 for row in sink.table().to_pylist()}
        for row in sink.table().to_pylist():
            last[row["columns"]] = max(last[row["columns"]], row["total"])
        found.append(last)
    assert found[0] == found[1]
    assert set(ways[: len(ways) // 2]) == {"tasks, few" if few else "tasks"}
    assert set(ways[len(ways) // 2 :]) == {"Spark"}


def test_rows_that_tasks_combine_give_what_the_rows_give(
    spark: SparkSession, tmp_path: Path, ways: Ways, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first epoch is not combined; an epoch that is, has no few rows."""
    directory, found = write(tmp_path / "in", spark), []
    monkeypatch.setattr(combining, "ROWS_PER_KEY", 0)
    for least in (0, 1 << 40):
        monkeypatch.setattr(combining, "ROWS_PER_SHARD", least)
        job, sink, told = hf.Job("combined"), hf.MemorySink(), dict[int, tuple[str, ...]]()
        source = hf.FileSource(directory, format="parquet", schema=SCHEMA)
        keyed = job.source(source, uid="in").key_by("share", "pair", order_by="amount")
        counted = keyed.aggregate(
            uid="op", n=hf.count(), total=hf.sum("amount"), price=hf.sum("price"), newest=hf.last("day")
        )
        counted.sink(sink, uid="out")
        run(
            job, spark, tmp_path / str(least), max_rows_per_epoch=ROWS,
            on_progress=lambda progress, told=told: told.update({progress.epoch: progress.combined}),
        )  # fmt: skip
        found.append(sorted(map(str, sink.table().to_pylist())))
        assert [told[epoch] for epoch in (2, 3, FILES)] == [("op",) if not least else ()] * 3
    assert found[0] == found[1]
    assert ways == ["tasks, few", *["tasks"] * (FILES - 1), *["tasks, few"] * FILES]


@pytest.mark.parametrize("column", ["at", "there"])
def test_tasks_find_the_event_time_of_what_they_read(
    column: str, spark: SparkSession, tmp_path: Path, ways: Ways, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows close at the same epochs, late rows are the same, and watermarks are where Spark finds them."""
    directory, found = write_in_time(tmp_path / "in", spark), []
    for name in ("few", "packed", "Spark"):
        monkeypatch.setattr(reading_tasks, "FEW_ROWS", 0 if name == "packed" else 5_000)
        job, sink, late, told = hf.Job("timed"), hf.MemorySink(), hf.MemorySink(), list[Any]()
        rows = job.source(hf.FileSource(directory, format="parquet", schema=SCHEMA), uid="in")
        if name == "Spark":
            rows = rows.transform(lambda frame: frame)
        timed = rows.watermark(column, delay="3s").key_by("small")
        counted = timed.window(hf.tumbling("10s"), on=column).aggregate(
            uid="op", n=hf.count(), total=hf.sum("amount")
        )
        counted.sink(sink, uid="out")
        counted.late().sink(late, uid="late")
        run(
            job, spark, tmp_path / name, max_rows_per_epoch=1,
            on_progress=lambda progress, told=told: told.append((progress.epoch, str(progress.watermarks))),
        )  # fmt: skip
        found.append((sorted(map(str, sink.rows())), sorted(map(str, late.rows())), sorted(set(told))[-1]))
    assert found[0] == found[1] == found[2]
    assert found[0][1], "there are late rows"
    # The epoch that closes the windows reads nothing.
    assert (ways.count("tasks, few"), ways.count("tasks")) == (FILES, FILES)


def test_rows_that_go_from_files_to_a_sink_are_the_same(
    spark: SparkSession, tmp_path: Path, staged: Ways
) -> None:
    directory, found = write(tmp_path / "in", spark), []
    for by_spark in (False, True):
        job, sink = hf.Job("relay"), hf.MemorySink()
        rows = job.source(hf.FileSource(directory, format="parquet", schema=SCHEMA), uid="in")
        if by_spark:
            rows = rows.transform(lambda frame: frame)
        rows.sink(sink, uid="out")
        run(job, spark, tmp_path / str(by_spark), max_rows_per_epoch=ROWS)
        found.append((str(sink.table().schema), sorted(map(str, sink.table().to_pylist()))))
    assert found[0] == found[1]
    assert len(found[0][1]) == FILES * ROWS
    assert staged == [*["tasks"] * FILES, *["Spark"] * FILES]


def test_rows_for_a_sink_that_only_spark_reads_are_given_to_spark(
    spark: SparkSession, tmp_path: Path, staged: Ways
) -> None:
    (tmp_path / "in").mkdir()
    for number in range(2):
        pq.write_table(pa.table({"user": [b"ann", b"bob"]}), tmp_path / "in" / f"{number}.parquet")
    job, sink = hf.Job("unmarked"), hf.MemorySink()
    source = hf.FileSource(tmp_path / "in", format="parquet", schema="user string")
    job.source(source, uid="in").sink(sink, uid="out")
    run(job, spark, tmp_path / "checkpoint", max_rows_per_epoch=2)
    assert sorted(row["user"] for row in sink.table().to_pylist()) == ["ann", "ann", "bob", "bob"]
    assert staged == ["Spark", "Spark"]


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> Ways:
    """How the rows of streams that no operator makes were staged."""
    taken: Ways = []
    by_tasks = EpochRunner._staged_by_tasks

    def told(self: EpochRunner, *given: Any) -> Any:
        results = by_tasks(self, *given)
        taken.append("Spark" if results is None else "tasks")
        return results

    monkeypatch.setattr(EpochRunner, "_staged_by_tasks", told)
    return taken


def write_in_time(directory: Path, spark: SparkSession) -> Path:
    """Files in which time goes on, with rows that are late, and some without a time."""
    directory.mkdir()
    schema = spark.createDataFrame([], SCHEMA).toArrow().schema
    for number in range(FILES):
        rows = rows_of(number)
        for place, row in enumerate(rows):
            seconds = number * 15 + place % 20 - (100 if place % 30 == 7 else 0)
            there = datetime(2024, 2, 3, 4, 5, 6) + timedelta(seconds=seconds)
            known = place % 30 != 9
            row |= {"at": there.replace(tzinfo=UTC) if known else None, "there": there if known else None}
        pq.write_table(pa.Table.from_pylist(rows, schema), directory / f"{number}.parquet")
    return directory


def test_tasks_find_files_from_wherever_they_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker of a cluster is in a directory of its own: a relative path means that of the driver."""
    write(tmp_path / "in", spark)
    monkeypatch.chdir(tmp_path)
    reader = hf.FileSource("in", format="parquet", schema=SCHEMA).reader([])
    planned = reader.next(None, None, 0)
    assert planned is not None
    pieces = reader.pieces(spark, planned)
    monkeypatch.chdir("/")
    assert pieces is not None
    assert (
        sum(rows.num_rows for number in range(pieces.count) for rows in pieces.read(number)) == FILES * ROWS
    )


def test_pieces_have_the_rows_of_the_frame(spark: SparkSession, tmp_path: Path) -> None:
    directory = write(tmp_path / "in", spark)
    source = hf.FileSource(directory, format="parquet", schema=SCHEMA)
    report = conformance.check_source(lambda: source, spark=spark, only=["pieces"])
    assert list(report.kept) == ["pieces"]


@pytest.mark.parametrize("name", ["Etc/UTC", "GMT"])
def test_utc_may_have_another_name(name: str, spark: SparkSession, tmp_path: Path, ways: Ways) -> None:
    """Rows have the types that Spark gives them in that session: functions see the name of its zone."""
    directory, found = write(tmp_path / "in", spark), {}
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", name)
    for by_spark in (False, True):
        job, first, second = chained(directory, "at", by_spark=by_spark)
        run(job, session, tmp_path / str(by_spark), max_rows_per_epoch=ROWS)
        found[by_spark] = [sorted(map(str, sink.table().to_pylist())) for sink in (first, second)]
    assert found[False] == found[True]
    assert f"tz={name}" in str(found[True])
    assert set(ways[: len(ways) // 2]) == {"tasks, few"}


def test_tasks_are_run_without_a_dataframe_where_workers_are_shared(
    spark: SparkSession, tmp_path: Path, ways: Ways, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elsewhere Spark would start workers for them alone. Either way tasks tell of their errors alike."""
    directory, kinds, found, errors = write(tmp_path / "in", spark), list[str](), [], []
    numbered = reading_tasks.numbered_tasks

    def told(*given: Any) -> Any:
        job = numbered(*given)
        kinds.append(type(job).__name__)
        return job

    monkeypatch.setattr(reading_tasks, "numbered_tasks", told)
    for shared in (True, False):
        if not shared:
            monkeypatch.setattr(spark_session, "_ONE_KIND_OF_WORKER", "spark.executorEnv.NEVER_SET")
        job, first, second = chained(directory, "text", by_spark=False)
        run(job, spark, tmp_path / str(shared), max_rows_per_epoch=ROWS)
        found.append([sorted(map(str, sink.table().to_pylist())) for sink in (first, second)])
        with pytest.raises(hf.UserCodeError) as failure:
            run(failing(directory), spark, tmp_path / f"{shared}-failing")
        errors.append(str(failure.value))
    assert found[0] == found[1]
    assert errors[0] == errors[1]
    half = len(kinds) // 2
    assert (set(kinds[:half]), set(kinds[half:])) == ({"PipelinedRDD"}, {"DataFrame"})


def test_a_job_may_change_its_way_between_epochs(
    spark: SparkSession, tmp_path: Path, ways: Ways, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What decides is how many rows an epoch has: the shards are the same."""
    (tmp_path / "in").mkdir()
    sizes = [3, 400, 2, 300, 1]
    monkeypatch.setattr(reading_tasks, "FEW_ROWS", 10)
    for number, size in enumerate(sizes):
        table = pa.table({"user": [f"u{n % 11}" for n in range(size)], "amount": [1] * size})
        pq.write_table(table, tmp_path / "in" / f"{number}.parquet")
    job, sink = hf.Job("changing"), hf.MemorySink()
    source = hf.FileSource(tmp_path / "in", format="parquet", schema="user string, amount long")
    keyed = job.source(source, uid="in").key_by("user")
    keyed.aggregate(uid="sum", total=hf.sum("amount")).sink(sink, uid="out")
    run(job, spark, tmp_path / "checkpoint", max_rows_per_epoch=1)
    assert ways == ["tasks, few", "tasks"] * 2 + ["tasks, few"]
    last = {row["user"]: row["total"] for row in sink.table().to_pylist()}
    assert last == {f"u{k}": sum(1 for size in sizes for n in range(size) if n % 11 == k) for k in range(11)}


def test_what_only_spark_reads_is_given_to_spark(spark: SparkSession, tmp_path: Path, ways: Ways) -> None:
    """Texts that old writers left unmarked are bytes to Arrow, and texts to Spark."""
    (tmp_path / "in").mkdir()
    for number in range(2):
        table = pa.table({"user": [b"ann", b"bob"], "amount": [1, 2]})
        pq.write_table(table, tmp_path / "in" / f"{number}.parquet")
    job, sink = hf.Job("unmarked"), hf.MemorySink()
    source = hf.FileSource(tmp_path / "in", format="parquet", schema="user string, amount long")
    keyed = job.source(source, uid="in").key_by("user")
    keyed.aggregate(uid="sum", total=hf.sum("amount")).sink(sink, uid="out")
    run(job, spark, tmp_path / "checkpoint", max_rows_per_epoch=2)
    assert sorted((row["user"], row["total"]) for row in sink.table().to_pylist()) == [
        ("ann", 1), ("ann", 2), ("bob", 2), ("bob", 4),
    ]  # fmt: skip
    assert ways == ["tasks, few", "Spark", "Spark"]


@pytest.mark.parametrize(
    ("schema", "options"),
    [
        ("user string not null, amount long", {}),
        ("user string, amount long, gap interval day to second", {}),
        ("user string, amount long", {"mergeSchema": "true"}),
    ],
)
def test_what_spark_alone_knows_is_left_to_spark(
    schema: str, options: dict[str, str], spark: SparkSession, tmp_path: Path, ways: Ways
) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"user": ["ann"], "amount": [1]}), tmp_path / "in" / "a.parquet")
    job, sink = hf.Job("sparks"), hf.MemorySink()
    source = hf.FileSource(tmp_path / "in", format="parquet", schema=schema, options=options)
    job.source(source, uid="in").key_by("amount").aggregate(uid="n", n=hf.count()).sink(sink, uid="out")
    run(job, spark, tmp_path / "checkpoint")
    assert (len(sink.rows()), ways) == (1, ["Spark"])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.sql.session.timeZone", "America/New_York"),
        ("spark.sql.caseSensitive", "true"),
        ("spark.sql.parquet.datetimeRebaseModeInRead", "LEGACY"),
        ("spark.sql.execution.arrow.useLargeVarTypes", "true"),
        ("spark.sql.execution.pyspark.udf.hideTraceback.enabled", "true"),
    ],
)
def test_a_session_that_reads_otherwise_reads_by_itself(
    name: str, value: str, spark: SparkSession, tmp_path: Path, ways: Ways
) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"user": ["ann"], "amount": [1]}), tmp_path / "in" / "a.parquet")
    session = spark.newSession()
    session.conf.set(name, value)
    job, sink = hf.Job("otherwise"), hf.MemorySink()
    source = hf.FileSource(tmp_path / "in", format="parquet", schema="user string, amount long")
    job.source(source, uid="in").key_by("user").aggregate(uid="n", n=hf.count()).sink(sink, uid="out")
    run(job, session, tmp_path / "checkpoint")
    assert (len(sink.rows()), ways) == (1, ["Spark"])


def test_names_that_differ_in_case_alone_are_refused_as_ever(
    spark: SparkSession, tmp_path: Path, ways: Ways
) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"user": ["a"], "User": ["b"]}), tmp_path / "in" / "a.parquet")
    job = hf.Job("case")
    source = hf.FileSource(tmp_path / "in", format="parquet", schema="user string")
    keyed = job.source(source, uid="in").key_by("user")
    keyed.aggregate(uid="n", n=hf.count()).sink(hf.MemorySink(), uid="out")
    with pytest.raises(hf.EpochFailed, match=r"a\.parquet"):
        run(job, spark, tmp_path / "checkpoint")
    assert ways == ["tasks, few", "Spark"]


class Exits(hf.KeyedFunction):
    output = "user string"

    def process(self, row: Any, ctx: Any) -> Any:
        raise SystemExit(3)


def test_what_fails_but_for_reading_is_not_run_again(spark: SparkSession, tmp_path: Path, ways: Ways) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"user": ["ann"]}), tmp_path / "in" / "a.parquet")
    job = hf.Job("exits")
    source = hf.FileSource(tmp_path / "in", format="parquet", schema="user string")
    job.source(source, uid="in").key_by("user").process(Exits(), uid="op").sink(hf.MemorySink(), uid="out")
    with pytest.raises(hf.EpochFailed, match="SystemExit"):
        run(job, spark, tmp_path / "checkpoint")
    assert ways == ["tasks, few"]


def test_state_that_cannot_be_taken_back_has_one_job_an_epoch(
    spark: SparkSession, tmp_path: Path, ways: Ways
) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"user": ["ann"], "amount": [1]}), tmp_path / "in" / "a.parquet")
    job, sink = hf.Job("once"), hf.MemorySink()
    source = hf.FileSource(tmp_path / "in", format="parquet", schema="user string, amount long")
    job.source(source, uid="in").key_by("user").aggregate(uid="n", n=hf.count()).sink(sink, uid="out")
    run(job, spark, tmp_path / "checkpoint", guarantee="at-most-once")
    assert (len(sink.rows()), ways) == (1, ["Spark"])


@pytest.mark.parametrize(
    "column",
    [pa.array([0], pa.timestamp("ns")), pa.array([None]), pa.array([0], pa.float16())],
    ids=["ns", "null", "float16"],
)
def test_what_spark_refuses_is_refused_whatever_its_values_are(
    column: pa.Array, spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"odd": column}), tmp_path / "in" / "a.parquet")
    declared = {"timestamp[ns]": "timestamp", "null": "string", "halffloat": "float"}[str(column.type)]
    source = hf.FileSource(tmp_path / "in", format="parquet", schema=f"odd {declared}")
    reader = source.reader([])
    planned = reader.next(None, None, 0)
    assert planned is not None
    pieces = reader.pieces(spark, planned)
    assert pieces is not None
    with pytest.raises(ValueError, match="which Spark does not read"):
        list(pieces.read(0))


def test_a_file_that_cannot_be_read_is_named_as_ever(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"user": ["ann"], "amount": ["much"]}), tmp_path / "in" / "a.parquet")
    job = hf.Job("misfit")
    source = hf.FileSource(tmp_path / "in", format="parquet", schema="user string, amount long")
    keyed = job.source(source, uid="in").key_by("user")
    keyed.aggregate(uid="sum", total=hf.sum("amount")).sink(hf.MemorySink(), uid="out")
    with pytest.raises(hf.EpochFailed, match=r"(?s)a\.parquet.*amount|amount.*a\.parquet"):
        run(job, spark, tmp_path / "checkpoint")


def test_dates_of_another_calendar_are_left_to_spark(spark: SparkSession, tmp_path: Path, ways: Ways) -> None:
    """Spark 2 wrote them otherwise, and notes no more than its version."""
    (tmp_path / "in").mkdir()
    table = pa.table({"day": [date(1200, 1, 1)], "amount": [1]})
    with pq.ParquetWriter(tmp_path / "in" / "a.parquet", table.schema, store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({"org.apache.spark.version": "2.4.8"})
    job, sink = hf.Job("calendar"), hf.MemorySink()
    source = hf.FileSource(tmp_path / "in", format="parquet", schema="day date, amount long")
    job.source(source, uid="in").key_by("day").aggregate(uid="n", n=hf.count()).sink(sink, uid="out")
    run(job, spark, tmp_path / "checkpoint")
    assert ways == ["tasks, few", "Spark"]
    (known,) = spark.read.parquet(str(tmp_path / "in")).select("day").collect()
    assert [row["day"] for row in sink.table().to_pylist()] == [known["day"]] != [date(1200, 1, 1)]
