"""Lookups: what a declaration may say, and what it means for the graph."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast as hf
from holdfast.connectors.memory import MemorySink, MemorySource
from holdfast.errors import DefinitionError
from holdfast.graph.event_time import watermarks_of
from holdfast.graph.fingerprint import fingerprint, fingerprint_parts
from holdfast.graph.lookups import key_pairs, table_columns
from holdfast.graph.streams import Declaration
from holdfast.graph.validate import mistakes


def prices(spark: Any) -> Any:
    return spark.read.parquet("prices")


def declared(table: Any = prices, **options: Any) -> tuple[Declaration, Any]:
    job = Declaration("job")
    stream = job.source(MemorySource([], schema="item string, ts timestamp, n long"), uid="rows")
    priced = stream.watermark("ts").lookup(table, **{"on": ("item", "id"), "uid": "prices", **options})
    priced.sink(MemorySink(), uid="out")
    return job, priced


def told(job: Declaration) -> str:
    return "\n".join(map(str, mistakes(job.graph())))


def test_one_column_two_or_a_list_of_them_are_compared() -> None:
    assert key_pairs("k") == (("k", "k"),)
    assert key_pairs(("k", "id")) == (("k", "id"),)
    assert key_pairs(["k", ("item", "id")]) == (("k", "k"), ("item", "id"))


@pytest.mark.parametrize("table", [prices, "prices/"])
def test_a_function_or_a_path_is_a_table(table: Any) -> None:
    assert told(declared(table)[0]) == ""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"uid": None}, "lookup: it has no uid, under which checkpoints keep it; add uid="),
        ({"uid": "rows"}, "uid 'rows' is taken by the source 'rows'"),
        ({"table": 5}, "5 is not a table; give a function from a Spark session to a DataFrame, or the path"),
        ({"table": ""}, "'' is not a table"),
        ({"how": "full"}, "how='full' is not known; use one of 'inner', 'left'"),
        ({"on": None}, "None does not name a column of each side; give 'k', ('k', 'id'), or a list"),
        ({"on": []}, "on=[] does not name a column of each side"),
        ({"on": "what"}, "the stream has no column 'what'; there are item, ts, n; name one of these"),
        ({"refresh": "0s"}, "refresh='0s' is no time at all; write a duration such as '1h'"),
        ({"refresh": None}, "refresh=None is no time at all"),
        ({"refresh": "soon"}, "refresh: 'soon' is not a duration; write a number and a unit"),
    ],
)
def test_what_cannot_be_looked_up_is_refused(options: dict[str, Any], said: str) -> None:
    found = told(declared(**options)[0])
    assert said in found
    assert len(found.splitlines()) == 1


def test_it_carries_event_time_on() -> None:
    job, priced = declared()
    assert [mark.column for mark in watermarks_of(priced._node)] == ["ts"]
    priced.watermark("ts").key_by("item").aggregate(n=hf.count(), uid="n").sink(MemorySink(), uid="more")
    assert "it is declared after lookup 'prices'; declare it on the streams of the sources before" in told(
        job
    )


def test_columns_of_the_table_come_after_those_of_the_stream_without_its_key() -> None:
    _, priced = declared(on=["n", ("item", "id")])
    added = table_columns(priced._node, ["item", "ts", "n"], ["id", "TS", "n", "price"])
    assert added == {"TS": "TS_right", "price": "price"}, "Spark's names are the same in either case"
    with pytest.raises(DefinitionError, match="would have the column 'ts_right' twice; rename one"):
        table_columns(priced._node, ["item", "ts", "n", "TS_RIGHT"], ["id", "n", "ts"])


def test_the_table_counts_for_the_fingerprint_and_how_often_it_is_read_does_not() -> None:
    def other(spark: Any) -> Any:
        return spark.read.parquet("other")

    same = fingerprint(declared()[0].graph())
    assert fingerprint(declared(refresh="1m")[0].graph()) == same
    for changed in ({"table": other}, {"table": "prices"}, {"how": "left"}, {"on": "item"}):
        assert fingerprint(declared(**changed)[0].graph()) != same
    assert "lookup prices" in fingerprint_parts(declared()[0].graph())
