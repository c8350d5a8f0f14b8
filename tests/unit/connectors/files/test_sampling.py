"""Which columns a file has, from a glance at it."""

from __future__ import annotations

import bz2
import gzip

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.connectors.files.sampling import columns_in
from holdfast.connectors.files.source_notices import ColumnNews

HEADER = {"header": "true"}


@pytest.mark.parametrize(
    ("options", "name", "sample", "columns"),
    [
        (HEADER, "a.csv", b"a,b\n1,2\n", ("a", "b")),
        ({"HEADER": "True"}, "a.csv", b"\xef\xbb\xbfa,b", ("a", "b")),
        ({**HEADER, "sep": ";", "quote": "'"}, "a.csv", b"'x;y';b\n", ("x;y", "b")),
        ({**HEADER, "comment": "#"}, "a.csv", b"# made by hand\n\na,b\n", ("a", "b")),
        (HEADER, "a.csv.gz", gzip.compress(b"a,b\n" * 50_000), ("a", "b")),
        (HEADER, "a.csv.bz2", bz2.compress(b"a,b\n"), ("a", "b")),
        ({**HEADER, "encoding": "UTF-16"}, "a.csv", "ä,b\n".encode("utf-16"), ("ä", "b")),
        ({}, "a.csv", b"a,b\n1,2\n", None),
        (HEADER, "a.csv", b"", None),
        (HEADER, "a.csv", b"a,A\n", None),
        (HEADER, "a.csv", b"a,,b\n", None),
        (HEADER, "a.csv.snappy", b"a,b\n", None),
        (HEADER, "a.csv.gz", b"no gzip", None),
        ({**HEADER, "encoding": "no such"}, "a.csv", b"a,b\n", None),
    ],
)
def test_a_csv_header_tells_the_columns_or_nothing_does(
    options: dict[str, str], name: str, sample: bytes, columns: tuple[str, ...] | None
) -> None:
    assert columns_in("csv", options, name, sample) == columns


def test_json_columns_are_those_of_the_first_rows() -> None:
    sample = b'{"a": 1}\nnonsense\n[{"b": 1}, 7]\n5\n{"c": 1}\n{"cut": '
    assert columns_in("json", {}, "a.json", sample) == ("a", "b", "c")
    assert columns_in("json", {}, "a.json", b'{"a": 1}\n' * 20 + b'{"late": 1}\n') == ("a",)


def test_parquet_columns_come_from_the_footer() -> None:
    out = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": [1], "s": [{"x": 1}]}), out)
    data = out.getvalue().to_pybytes()
    assert columns_in("parquet", {}, "a.parquet", data) == ("a", "s")
    assert columns_in("parquet", {}, "a.parquet", data[-3:]) is None


def test_a_column_that_is_not_declared_is_told_once_with_its_file() -> None:
    news = ColumnNews("in", ["user", "amount"], complete=True)
    assert news.look("1", ("USER", "amount")) == ("USER", "amount")
    assert news.taken() == []
    assert news.look("2", ("x", "user")) == ("x", "user")
    told = news.taken()
    assert any("new column 'x', first seen in file '2'" in text for text in told)
    assert any("column 'amount' is missing in file '2': it is null there" in text for text in told)
    news.look("3", ("x", "user"))
    assert (news.taken(), news.undeclared) == ([], {"x": "2"})


def test_a_header_without_a_declared_column_is_not_taken_for_one() -> None:
    news = ColumnNews("in", ["user"], complete=True)
    assert news.look("1", ("anna", "7")) is None
    assert news.undeclared == {}


def test_json_keys_are_compared_with_their_case_and_none_is_missed() -> None:
    news = ColumnNews("in", ["user", "amount"], complete=False)
    news.look("1", ("User",))
    assert news.undeclared == {"User": "1"}
    assert len(news.taken()) == 1
