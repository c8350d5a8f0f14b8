"""Every Spark SQL type, as Spark makes it, goes into state, through a restart and out again unchanged; and,
where it can be hashed, is a key.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from holdfast.errors import DefinitionError
from holdfast.runtime.epoch.program import compile_graph

# Without time, of which Spark 4.3 has most functions switched off (test_routing_matches_spark has it).
VALUES = {
    "boolean": "id % 2 = 0",
    "byte": "cast(id - 3 as byte)",
    "short": "cast(id - 3 as short)",
    "int": "cast(id - 3 as int)",
    "long": "id - 3",
    "float": "cast(if(id = 1, 'NaN', id / 3) as float)",
    "double": "if(id = 1, double('NaN'), if(id = 2, -0.0D, id / 3D))",
    "decimal(38,18)": "cast(id / 7 as decimal(38,18))",
    "string": "repeat('é', int(id) * 100)",
    "binary": "cast(repeat('x', int(id) * 100) as binary)",
    "date": "date_add(date'1969-12-30', int(id))",
    "timestamp": "timestamp_micros(id * 1234567 - 5000000)",
    "timestamp_ntz": "timestamp_ntz'2024-02-29 12:30:01.123456' + make_dt_interval(id)",
    "interval day to second": "make_dt_interval(id, 1, 2, 3.000004)",
    "interval hour": "cast(make_dt_interval(0, id) as interval hour)",
    "array<struct<a:int,b:string>>": "array(named_struct('a', int(id), 'b', string(id)), null)",
    "struct<a:array<date>,b:decimal(9,2)>": (
        "named_struct('a', array(date'2024-02-29'), 'b', cast(id as decimal(9,2)))"
    ),
    "map<string,array<long>>": "map('k', array(id, null))",
    "void": "null",
    "variant": "parse_json(concat('{\"n\": ', id, '}'))",
}
KEYS = [ddl for ddl in VALUES if ddl not in ("map<string,array<long>>", "variant", "void")]
TEXT = {
    "variant": "to_json({})",
    "binary": "hex({})",
    # All day-time intervals are one type here: the span is the same, its units are not kept.
    "interval hour": "string(cast({} as interval day to second))",
}


COLUMNS = {f"v{n}": ddl for n, ddl in enumerate(VALUES)}


class Remember(hf.KeyedFunction):
    """Gives out the values that the row before it brought."""

    output = "id long, " + ", ".join(f"{name} {ddl}" for name, ddl in COLUMNS.items())
    v0, v1, v2, v3, v4, v5, v6, v7, v8, v9, v10, v11, v12, v13, v14, v15, v16, v17, v18, v19 = map(
        hf.ValueState, VALUES
    )

    def process(self, row: Any, ctx: Any) -> Any:
        yield row.id, *(getattr(self, name).value for name in COLUMNS)
        for name in COLUMNS:
            getattr(self, name).value = getattr(row, name)


def with_values(frame: DataFrame) -> DataFrame:
    given = [f"if(id = 3, null, {VALUES[ddl]}) as {name}" for name, ddl in COLUMNS.items()]
    return frame.selectExpr("id", "1 as k", *given)


def as_text(frame: DataFrame) -> DataFrame:
    shown = [f"{TEXT.get(ddl, 'string({})').format(name)} as {name}" for name, ddl in COLUMNS.items()]
    return frame.selectExpr("id", *shown)


def run(job: hf.Job, spark: SparkSession, checkpoint: Path, working: Path, **options: Any) -> None:
    job.run(
        checkpoint,
        spark=spark,
        until="exhausted",
        working_dir=working,
        restart=hf.NoRestart(),
        on_message=lambda _: None,
        **options,
    )


def test_a_value_of_every_type_comes_back_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    sink = hf.MemorySink()
    for rows in (3, 5):  # The second run restores what the first one stored.
        job = hf.Job("types")
        ids = job.source(hf.GeneratorSource({"id": "id"}, schema="id long", total=rows), uid="ids")
        kept = ids.transform(with_values).key_by("k", order_by="id").process(Remember(), uid="kept")
        kept.transform(as_text).sink(sink, uid="out")
        working = tmp_path / f"working{rows}"
        run(job, spark, tmp_path / "ck", working, parallelism=1, max_rows_per_epoch=3)
    values = [tuple(row)[1:] for row in as_text(with_values(spark.range(5))).orderBy("id").collect()]
    nothing = (None,) * len(VALUES)
    found = [tuple(row)[1:] for row in sorted(sink.rows(), key=lambda row: row[0])]
    for column, ddl in enumerate(VALUES):
        assert [row[column] for row in found] == [row[column] for row in (nothing, *values[:4])], ddl


def test_every_hashable_type_is_a_key(spark: SparkSession, tmp_path: Path) -> None:
    """Each key comes twice, in different epochs, and is found again."""
    job, sinks = hf.Job("keys"), {ddl: hf.MemorySink() for ddl in KEYS}
    ids = job.source(hf.GeneratorSource({"id": "id % 4"}, schema="id long", total=8), uid="ids")
    keyed = ids.transform(
        lambda frame: frame.selectExpr("id", *(f"{VALUES[ddl]} as k{n}" for n, ddl in enumerate(KEYS)))
    )
    for n, ddl in enumerate(KEYS):
        counts = keyed.key_by(f"k{n}").aggregate(uid=f"counts{n}", n=hf.count())
        counts.sink(sinks[ddl], uid=f"out{n}")
    run(job, spark, tmp_path / "ck", tmp_path / "working", parallelism=2, max_rows_per_epoch=4)
    for ddl, sink in sinks.items():
        distinct = spark.range(4).selectExpr(f"{VALUES[ddl]} as k").distinct().count()
        counts = sorted(row[-1] for row in sink.rows())
        assert len(counts) == 2 * distinct, ddl
        assert sum(counts[-distinct:]) == 8, ddl


def test_every_aggregate_over_every_type_is_what_spark_computes(spark: SparkSession, tmp_path: Path) -> None:
    """All pairs that are accepted, in one job and over two epochs. In Spark NaN is the largest: left out."""
    numbers = ("byte", "short", "int", "long", "float", "double", "decimal(38,18)")
    nested = ("array", "struct", "map", "variant")
    aggregates: dict[str, Any] = {}
    wanted: dict[str, str] = {}
    for name, ddl in COLUMNS.items():
        text = TEXT.get(ddl, "string({})")
        kinds = {
            "count": (hf.count, f"string(count({name}))"),
            "first": (hf.first, text.format(f"min_by({name}, id) filter (where {name} is not null)")),
            "last": (hf.last, text.format(f"max_by({name}, id) filter (where {name} is not null)")),
            "collect": (hf.collect, f"string(count({name}))"),
        }
        if not ddl.startswith(nested) and ddl not in ("float", "double"):
            kinds |= {
                "min": (hf.min, text.format(f"min({name})")),
                "max": (hf.max, text.format(f"max({name})")),
            }
        if ddl in numbers:
            kinds |= {
                "sum": (hf.sum, f"string(sum({name}))"),
                "mean": (hf.mean, f"string(avg(double({name})))"),
            }
        for kind, (make, expression) in kinds.items():
            aggregates[f"{kind}_{name}"], wanted[f"{kind}_{name}"] = make(name), expression

    def shown(frame: DataFrame) -> DataFrame:
        texts = [TEXT.get(COLUMNS[each.split("_")[1]], "string({})") for each in aggregates]
        return frame.selectExpr(
            *(
                f"string({'size' if each.startswith('collect') else ''}({each})) as {each}"
                if each.startswith(("count", "collect", "sum", "mean"))
                else f"{text.format(each)} as {each}"
                for each, text in zip(aggregates, texts, strict=True)
            )
        )

    job, sink = hf.Job("aggregates"), hf.MemorySink()
    ids = job.source(hf.GeneratorSource({"id": "id"}, schema="id long", total=6), uid="ids")
    kept = ids.transform(with_values).key_by("k", order_by="id").aggregate(uid="kept", **aggregates)
    kept.transform(lambda frame: shown(frame)).sink(sink, uid="out")
    run(job, spark, tmp_path / "ck", tmp_path / "working", parallelism=1, max_rows_per_epoch=3)
    expressions = [f"{expression} as {name}" for name, expression in wanted.items()]
    (expected,) = with_values(spark.range(6)).selectExpr(*expressions).collect()
    found = dict(zip(aggregates, sink.rows()[-1], strict=True))
    assert {name: (found[name], expected[name]) for name in found if found[name] != expected[name]} == {}


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("map(id, id)", "holds a map, which has no stable hash"),
        ("parse_json('1')", "holds a variant, which has no stable hash"),
        ("collate('a', 'UTF8_LCASE')", "collated strings"),
        ("make_ym_interval(1)", "Spark hands no year-month interval to Python"),
        ("make_interval(1)", "Spark hands no calendar interval to Python"),
    ],
)
def test_what_cannot_be_a_key_is_refused_in_one_line(
    spark: SparkSession, expression: str, problem: str
) -> None:
    job = hf.Job("refused")
    ids = job.source(hf.GeneratorSource({"id": "id"}, schema="id long", total=1), uid="ids")
    keyed = ids.transform(lambda frame: frame.selectExpr(f"{expression} as k")).key_by("k")
    keyed.aggregate(uid="counts", n=hf.count()).sink(hf.MemorySink(), uid="out")
    with pytest.raises(DefinitionError) as refused:
        compile_graph(job.graph(), spark)
    assert problem in str(refused.value)
    assert "\n" not in str(refused.value)
