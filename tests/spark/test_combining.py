"""Rows that Spark combines before they go to their shards give what the rows themselves would have given."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from holdfast.checkpoint.chain.plans import Plans
from holdfast.graph.aggregates import Aggregate, AggregateKind, Aggregation
from holdfast.graph.partials import ROWS_COLUMN, partials_of
from holdfast.ids import EpochId
from holdfast.runtime.epoch import combining
from holdfast.state.encoding.types import frame_ddl, parse_type
from holdfast.state.files.delta import to_entries
from holdfast.storage.urls import open_storage
from holdfast.tasks.operators.partial_rows import Combined
from tests.spark.jobs import run
from tests.unit.tasks.operators.operator_kit import Harness
from tests.unit.tasks.operators.test_aggregate_types import VALUES, accepted

EPOCHS, KEYS, PARTS, ROWS = 3, 12, 4, 900
NAN = math.nan

MORE: dict[str, list[Any]] = {
    "float": [NAN, -0.0, 0.0, 3.5],
    "double": [NAN, -0.0, 0.0, 3.5],
    "int": [0, -7],
    "decimal(10,2)": [Decimal("0.01")],
}


def of_type(ddl: str) -> list[Any]:
    """Values to draw from: the ends of the type, nulls and what is odd. Longs have pairs of their own."""
    if ddl == "long":
        return [5, -9, None]
    if ddl in ("float", "double"):
        return [1.5, -2.5, *MORE[ddl], None]
    return [*VALUES[ddl], *MORE.get(ddl, []), None]


COMBINED = [
    ddl
    for ddl in VALUES
    if not ddl.startswith(("string", "binary", "time(", "void", "variant", "array", "map", "struct"))
]


def random_rows(seed: int) -> pa.Table:
    """Rows of every type with a key, an order, an epoch and the part that they are cut into. Sums of longs
    fit, and those of their parts do not: every large one has its opposite in some other part."""
    rng = random.Random(seed)
    rows: list[dict[str, Any]] = []
    for _ in range(ROWS):
        row = {"k": rng.choice([None, *range(KEYS - 1)]), "epoch": rng.randrange(EPOCHS)}
        values = {f"v{n}": rng.choice(of_type(ddl)) for n, ddl in enumerate(COMBINED)}
        if row["k"] is None or row["k"] % 2:
            # A sum with NaN is NaN: half of the keys are without.
            values = {name: None if value != value else value for name, value in values.items()}
        rows.append({**row, **values, "part": rng.randrange(PARTS)})
        if rng.random() < 0.3:
            large = rng.choice([1 << 62, -(1 << 63) + 1])
            for number in (large, -large):
                long = {f"v{COMBINED.index('long')}": number}
                rows.append({**row, **values, **long, "part": rng.randrange(PARTS)})
    # Places in the order are used once, but for those that have none: which of these is first is not said.
    places = list(range(len(rows)))
    rng.shuffle(places)
    for row, place in zip(rows, places, strict=True):
        row["at"] = place
    schema = pa.schema(
        [
            ("k", pa.int64()),
            *((f"v{n}", parse_type(ddl)) for n, ddl in enumerate(COMBINED)),
            ("at", pa.int64()),
            ("epoch", pa.int32()),
            ("part", pa.int32()),
        ]
    )
    return pa.Table.from_pylist(rows, schema)


def every_aggregate(order_by: tuple[str, ...], schema: pa.Schema) -> Aggregation:
    """Every kind over every type that can be combined."""
    found = {"n": Aggregate(AggregateKind.COUNT, None)}
    for number, ddl in enumerate(COMBINED):
        for kind in AggregateKind:
            each = Aggregate(kind, f"v{number}")
            if accepted(kind, ddl) and partials_of(Aggregation({"r": each}), schema, order_by) is not None:
                found[f"{kind}_{number}"] = each
    return Aggregation(found)


def same(name: str, found: Any, wanted: Any) -> bool:
    """Equal; floats that were added in another order nearly, as far as their largest values let them."""
    if not isinstance(wanted, float) or math.isnan(wanted):
        return bool(found == wanted or (found != found and wanted != wanted))
    values = VALUES[COMBINED[int(name.split("_")[1])]]
    largest = max(abs(float(value)) for value in values if math.isfinite(value))
    summed = name.startswith(("sum", "mean"))
    return math.isclose(found, wanted, rel_tol=1e-9, abs_tol=1e-9 * largest if summed else 0)


def outputs(job: Harness, table: pa.Table, partials: Any = None) -> dict[Any, dict[str, Any]]:
    result = job.epoch_of_table(table, partials)
    rows = result.outputs[""].to_pylist()
    assert len(to_entries(job.layout, result.changes)) == len(rows)
    return {row.pop("k"): row for row in rows}


def by_spark(spark: SparkSession, table: pa.Table, key: list[str], combined: Combined) -> pa.Table:
    frame = spark.createDataFrame(table, frame_ddl(table.schema))
    return combining.combined(frame, key, combined.partials).toArrow()


def by_a_task(spark: SparkSession, table: pa.Table, key: list[str], combined: Combined) -> pa.Table:
    key_schema = pa.schema([table.schema.field(name) for name in key])
    made = replace(combined, key=tuple(key), key_schema=key_schema)
    return pa.Table.from_batches([made.rows(table.combine_chunks().to_batches()[0])])


@pytest.mark.parametrize("made_by", [by_spark, by_a_task])
def test_rows_cut_into_partial_rows_in_any_way_give_what_the_rows_give(
    spark: SparkSession, made_by: Any
) -> None:
    """Every kind of aggregate over every type, epoch after epoch."""
    table = random_rows(seed=1)
    aggregation = every_aggregate(("at",), table.schema)
    partials = partials_of(aggregation, table.schema, ("at",))
    assert partials is not None
    assert {each.kind for each in aggregation.aggregates.values()} == set(AggregateKind) - {"collect"}
    # Parts as an operator would hold rows of a key apart, such as by window.
    combined = Combined(aggregation, partials, ("k",), pa.schema([]), ("at",))
    made = made_by(spark, table, ["k", "epoch", "part"], combined)
    assert sum(made[ROWS_COLUMN].to_pylist()) == table.num_rows
    rows_job = Harness(aggregation, table.schema, ["k"], order_by=["at"])
    parts_job = Harness(aggregation, table.schema, ["k"], order_by=["at"])
    for epoch in range(EPOCHS):
        wanted = outputs(rows_job, table.filter(pa.compute.field("epoch") == epoch))
        found = outputs(parts_job, made.filter(pa.compute.field("epoch") == epoch), partials)
        assert found.keys() == wanted.keys()
        for key, row in wanted.items():
            wrong = {
                n: (found[key][n], value) for n, value in row.items() if not same(n, found[key][n], value)
            }
            assert wrong == {}, f"key {key}: combined, not combined"
        assert parts_job.state.entries.keys() == rows_job.state.entries.keys()


@pytest.mark.parametrize("made_by", [by_spark, by_a_task])
def test_first_and_last_with_rows_that_have_no_place(spark: SparkSession, made_by: Any) -> None:
    """Nulls come first in the order; a value that is null counts in no place."""
    given = [
        ("a", 1, 5), ("a", 2, None), ("a", None, None), ("a", 3, 9), ("a", None, 10), ("a", None, 1),
        ("b", 4, None), ("b", None, 3), ("c", None, None), ("d", 6, 2), ("d", 7, 1),
    ]  # fmt: skip
    schema = pa.schema([("k", pa.string()), ("v", pa.int64()), ("at", pa.int32())])
    aggregation = Aggregation({"f": hf.first("v"), "l": hf.last("v")})
    partials = partials_of(aggregation, schema, ("at",))
    assert partials is not None
    columns = [
        pa.array(column, type) for column, type in zip(zip(*given, strict=True), schema.types, strict=True)
    ]
    table = pa.table([*columns, pa.array([n % 2 for n in range(len(given))])], names=[*schema.names, "p"])
    combined = Combined(aggregation, partials, ("k",), pa.schema([]), ("at",))
    for grouping in (["k"], ["k", "p"]):
        made = made_by(spark, table, grouping, combined)
        found = Harness(aggregation, schema, ["k"], order_by=["at"]).epoch_of_table(made, partials)
        wanted = Harness(aggregation, schema, ["k"], order_by=["at"]).rows_of(given)
        assert sorted(tuple(row.values()) for row in found.outputs[""].to_pylist()) == wanted


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Combining begins as soon as an epoch had rows."""
    monkeypatch.setattr(combining, "ROWS_PER_KEY", 0)
    monkeypatch.setattr(combining, "ROWS_PER_SHARD", 0)


KEY_TYPES = {
    "double": "element_at(array(0.0D, -0.0D, double('NaN'), null, 1.5D), int(id % 5) + 1)",
    "nested": (
        "element_at(array(named_struct('a', array(0.0D)), named_struct('a', array(-0.0D)), "
        "named_struct('a', array(double('NaN'))), null, named_struct('a', null)), int(id % 5) + 1)"
    ),
    "string": "element_at(array('a', 'A', '', null, 'a '), int(id % 5) + 1)",
}


def keyed_counts(job: hf.Job, total: int, sinks: dict[str, hf.MemorySink]) -> None:
    ids = job.source(hf.GeneratorSource({"id": "id"}, schema="id long", total=total), uid="ids")

    def with_keys(frame: DataFrame) -> DataFrame:
        return frame.selectExpr("id", *(f"{sql} as {name}" for name, sql in KEY_TYPES.items()))

    keyed = ids.transform(with_keys)
    for name, sink in sinks.items():
        counts = keyed.key_by(name).aggregate(uid=name, n=hf.count(), total=hf.sum("id"))
        counts.sink(sink, uid=f"out-{name}")


def texts(sink: hf.MemorySink) -> list[str]:
    """The rows as text. -0.0 and 0.0 are one key: which of them is shown is not said."""
    return sorted(str(row).replace("-0.0", "0.0") for row in sink.rows())


class Told:
    """Listens to a run: which operators were combined in each epoch."""

    def __init__(self) -> None:
        self.epochs: dict[int, tuple[str, ...]] = {}

    def __call__(self, progress: hf.Progress) -> None:
        if progress.epoch:
            self.epochs[progress.epoch] = progress.combined


@pytest.mark.usefixtures("always")
def test_keys_of_every_kind_are_the_same_keys_when_combined(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nulls, -0.0 and NaN, also within other values; the first epoch is not combined, the others are."""
    shown: list[dict[str, list[str]]] = []
    for place in ("combined", "not"):
        if place == "not":
            monkeypatch.setattr(combining, "ROWS_PER_SHARD", math.inf)
        sinks, told = {name: hf.MemorySink() for name in KEY_TYPES}, Told()
        job = hf.Job("keys")
        keyed_counts(job, 60, sinks)
        run(job, spark, tmp_path / place, max_rows_per_epoch=20, on_progress=told)
        shown.append({name: texts(sink) for name, sink in sinks.items()})
        names = tuple(sorted(KEY_TYPES))
        chosen = names if place == "combined" else ()
        assert told.epochs == {1: (), 2: chosen, 3: chosen}
    assert shown[0] == shown[1]
    assert len(shown[0]["double"]) == 3 * 4


WINDOWED_EPOCHS, ROWS_PER_EPOCH = 6, 40
LATE_BY_EPOCH = {3, 5}
WINDOWS = {
    "tumbling": (hf.tumbling("10s", offset="3s"), {}),
    "sliding": (hf.sliding("10s", every="4s"), {"allowed_lateness": "6s"}),
    "early": (hf.tumbling("7s"), {"emit_every": "1ms"}),
}


def windowed_rows() -> list[tuple[Any, ...]]:
    """Times grow from epoch to epoch; in some epochs there are rows that come too late, and one without."""
    rng, rows = random.Random(5), []
    for epoch in range(1, WINDOWED_EPOCHS + 1):
        for _ in range(ROWS_PER_EPOCH):
            at: float | None = epoch * 8 + rng.uniform(-4, 4)
            if epoch in LATE_BY_EPOCH and rng.random() < 0.1:
                at = rng.choice([rng.uniform(-20, 0), None])
            when = None if at is None else datetime.fromtimestamp(1_700_000_000 + at, UTC)
            rows.append((rng.choice("abc"), when, rng.randrange(100)))
    return rows


def windowed_job(naive: bool, reads_late: bool, sinks: dict[str, hf.MemorySink]) -> hf.Job:
    job = hf.Job("windows")
    source = hf.MemorySource(windowed_rows(), schema="k string, ts timestamp, v long")
    rows = job.source(source, uid="rows")
    if naive:
        rows = rows.transform(lambda frame: frame.selectExpr("k", "to_timestamp_ntz(ts) as ts", "v"))
    keyed = rows.watermark("ts", delay="4s").key_by("k")
    for name, (window, settings) in WINDOWS.items():
        made = keyed.window(window, on="ts", **settings).aggregate(
            uid=name, n=hf.count(), total=hf.sum("v"), least=hf.min("v"), mean=hf.mean("v")
        )
        made.sink(sinks[name], uid=f"out-{name}")
        if reads_late:
            made.late().sink(sinks[f"late {name}"], uid=f"late-{name}")
    return job


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(("naive", "reads_late"), [(False, True), (True, False)])
def test_windows_are_the_same_when_their_rows_are_combined(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, naive: bool, reads_late: bool
) -> None:
    """By key and pane. Late rows that something reads are never combined: their epoch is computed of the rows
    themselves, and the next one, too."""
    shown: list[dict[str, list[str]]] = []
    for place in ("combined", "not"):
        if place == "not":
            monkeypatch.setattr(combining, "ROWS_PER_SHARD", math.inf)
        sinks = {name: hf.MemorySink() for each in WINDOWS for name in (each, f"late {each}")}
        told = Told()
        run(
            windowed_job(naive, reads_late, sinks),
            spark,
            tmp_path / place,
            max_rows_per_epoch=ROWS_PER_EPOCH,
            on_progress=told,
        )
        shown.append({name: sorted(map(str, sink.rows())) for name, sink in sinks.items()})
        epochs = [epoch for epoch in range(1, WINDOWED_EPOCHS + 1) if "tumbling" in told.epochs[epoch]]
        after_late = {epoch + 1 for epoch in LATE_BY_EPOCH} if reads_late else set()
        wanted = set(range(2, WINDOWED_EPOCHS + 1)) - after_late if place == "combined" else set()
        assert set(epochs) == wanted
    assert shown[0] == shown[1]
    assert all(shown[0][name] for name in WINDOWS)
    assert bool(shown[0]["late tumbling"]) is reads_late


SCHEMA = "k string, v long"


def sums(rows: list[Any], sink: hf.MemorySink, transform: Any = None) -> hf.Job:
    job = hf.Job("sums")
    stream = job.source(hf.MemorySource(rows, schema=SCHEMA), uid="rows")
    stream = stream.transform(transform) if transform else stream
    stream.key_by("k").aggregate(uid="op", total=hf.sum("v"), n=hf.count()).sink(sink, uid="out")
    return job


@pytest.mark.usefixtures("always")
def test_a_sum_that_overflows_in_a_combined_epoch_fails_naming_its_key(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The sums of the rows before the last one fit, and only as a whole."""
    sink = hf.MemorySink()
    large = [("a", 2**62), ("a", 2**62), ("a", 2**62), ("a", -(2**62)), ("a", -(2**62)), ("b", 1)]
    rows = [("b", 1)] * 6 + large + [("a", 2**62)] * 5 + [("b", 1)]
    with pytest.raises(
        hf.UserCodeError, match="'total' is 27670116110564327424, too large for long"
    ) as caught:
        run(sums(rows, sink), spark, tmp_path, max_rows_per_epoch=6)
    assert caught.value.key == "a"
    failed = Plans(open_storage(str(tmp_path))).newest(EpochId(3))
    assert failed is not None
    assert failed.combined == ("op",)
    assert sorted(sink.rows()) == [("a", 2**62, 5), ("b", 6, 6), ("b", 7, 7)]


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("adaptive", ["false", "true"])
def test_combined_epochs_without_rows_change_nothing(
    spark: SparkSession, tmp_path: Path, adaptive: str
) -> None:
    """Whether Spark proves an epoch empty before its job or while it runs, every shard gives a result."""
    own = spark.newSession()
    own.conf.set("spark.sql.adaptive.enabled", adaptive)
    own.conf.set("spark.sql.shuffle.partitions", "2")
    rows = [("a", 1)] * 4 + [("a", -1)] * 8 + [("a", 1)] * 4

    def positive(frame: DataFrame) -> DataFrame:
        return frame.where("v > 0")

    sink, told = hf.MemorySink(), Told()
    run(sums(rows, sink, positive), own, tmp_path, max_rows_per_epoch=4, on_progress=told)
    assert told.epochs == {1: (), 2: ("op",), 3: ("op",), 4: ("op",)}
    assert sorted(sink.rows()) == [("a", 4, 4), ("a", 8, 8)]


@pytest.mark.parametrize(
    ("given", "partitions"), [("", "2"), ("--conf spark.sql.shuffle.partitions=7 ", "7")]
)
def test_a_session_that_is_opened_groups_into_as_many_partitions_as_cores_unless_told_otherwise(
    given: str, partitions: str
) -> None:
    code = (
        "from holdfast.runtime.spark_session import open_session;"
        "print('partitions', open_session('own').conf.get('spark.sql.shuffle.partitions'))"
    )
    own = {**os.environ, "PYSPARK_SUBMIT_ARGS": f"--master local[2] {given}pyspark-shell"}
    done = subprocess.run([sys.executable, "-c", code], env=own, capture_output=True, text=True, check=True)
    assert f"partitions {partitions}\n" in done.stdout
