"""Rows that came as names and bytes, as Spark makes columns of them: each fits, or is told."""

from __future__ import annotations

from pyspark.sql import SparkSession

from holdfast.connectors.received_rows import RAW_DDL, RowForm, raw_rows

FIT = {
    '{"n": 1, "x": 0.5}': (1, 0.5),
    ' {"n": 2} \n': (2, None),
    '{"n": 3, "x": -Infinity}': (3, float("-inf")),
    "{'n': 4, 'other': [{}, {}]}": (4, None),
}
MISFITS = {
    '{"n": 1}{"n": 2}': "there is more after its JSON",
    '{"n": 1}\n{"n": 2}\n': "there is more after its JSON",
    '{"n": 1}, {"n": 2}': "there is more after its JSON",
    '{"n": 1} and more': "there is more after its JSON",
    '[{"n": 1}, {"n": 2}]': "its JSON does not fit the columns",
    '{"n": "one"}': "its JSON does not fit the columns",
    "": "it is not JSON in UTF-8",
}


def test_a_message_of_several_objects_loses_none_in_silence(spark: SparkSession) -> None:
    texts = [*FIT, *MISFITS]
    rows = raw_rows("queue", [(f"message {n}", None, {"value": t.encode()}) for n, t in enumerate(texts)])
    raw = spark.createDataFrame(
        [(row["place"], row["origin"], row["id"], dict(row["fields"])) for row in rows.to_pylist()], RAW_DDL
    )
    form = RowForm("n long, x double", "json")
    found = [(row.n, row.x) for row in form.sifted(raw).rows.collect()]
    assert sorted(found, key=lambda row: row[0]) == list(FIT.values())
    assert {row.row: row.reason for row in form.letters(raw).collect()} == MISFITS
