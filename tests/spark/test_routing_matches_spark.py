"""The written-down routing hashes are what this Spark computes: a Spark that hashes otherwise must not run
a job."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from holdfast.state.encoding.keys import group_expression, key_groups_of, routing_expression, routing_hash
from holdfast.state.encoding.types import schema_ddl
from tests.unit.state.encoding.routing_cases import CASES, golden_hashes


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_spark_still_computes_the_golden_hashes(spark: SparkSession, ansi: str) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.ansi.enabled", ansi)
    found = {}
    for name, table in CASES.items():
        frame = session.createDataFrame(table, schema_ddl(table.schema))
        hashed = frame.selectExpr(routing_expression(table.schema, table.column_names))
        found[name] = [row[0] for row in hashed.collect()]
    assert found == golden_hashes()


def test_spark_and_python_choose_the_same_key_group(spark: SparkSession) -> None:
    frame = spark.range(1_000).selectExpr("id * 7919 - 3000 as a", "concat('user-', id) as b")
    schema = frame.toArrow().schema
    rows = (
        frame.selectExpr("a", "b", f"{group_expression(schema, ['a', 'b'], 128)} as g")
        .toArrow()
        .combine_chunks()
    )
    groups = key_groups_of(routing_hash([rows.column("a").chunk(0), rows.column("b").chunk(0)]), 128)
    assert rows.column("g").to_pylist() == groups.tolist()
