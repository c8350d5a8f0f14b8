"""Key columns whose routing hashes are written down in golden_routing.json, as Spark 4.3 computed them
once."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal
from pathlib import Path

import pyarrow as pa

from holdfast.state.encoding.types import parse_schema

GOLDEN = Path(__file__).with_name("golden_routing.json")


def table(ddl: str, **columns: list[object]) -> pa.Table:
    schema = parse_schema(ddl)
    return pa.table([pa.array(columns[field.name], field.type) for field in schema], schema=schema)


_LONGS = [0, 1, -1, 42, -(2**63), 2**63 - 1, 123456789012, None]
_DOUBLES = [0.0, -0.0, 1.5, -2.25, math.nan, math.inf, -math.inf, 1e308, 5e-324, None]
_TIMES = [dt.datetime(1970, 1, 1), dt.datetime(2024, 2, 29, 12, 30, 1, 123456), dt.datetime(1900, 1, 1), None]
_UTC_TIMES = [time and time.replace(tzinfo=dt.UTC) for time in _TIMES]

CASES: dict[str, pa.Table] = {
    "boolean": table("k boolean", k=[True, False, None]),
    "byte": table("k byte", k=[0, 1, -1, 127, -128, None]),
    "short": table("k short", k=[0, 1, -1, 32767, -32768, None]),
    "int": table("k int", k=[0, 1, -1, 42, 2**31 - 1, -(2**31), None]),
    "long": table("k long", k=_LONGS),
    "float": table("k float", k=[0.0, -0.0, 1.5, -2.25, 0.1, math.nan, math.inf, -math.inf, None]),
    "double": table("k double", k=_DOUBLES),
    "decimal-short": table(
        "k decimal(10,2)", k=[Decimal("0.00"), Decimal("1.10"), Decimal("-99999999.99"), None]
    ),
    "decimal-fine": table(
        "k decimal(18,10)", k=[Decimal("1E-10"), Decimal("-1.28E-8"), Decimal("2.55E-8"), None]
    ),
    "decimal-long": table(
        "k decimal(38,5)", k=[Decimal("1.00000"), Decimal(10**32), Decimal(-(10**32)), None]
    ),
    "string": table("k string", k=["", "a", "user-1", "naïve 😀", "nul\0inside", None]),
    "string-lengths": table(
        "k string", k=["0123456789abcdefghijklmnopqrstuvwxyz" * 3] + ["x" * n for n in range(70)]
    ),
    "binary": table("k binary", k=[b"", b"\x00", b"\xff\xfe", bytes(range(64)), None]),
    "date": table("k date", k=[dt.date(1970, 1, 1), dt.date(2024, 2, 29), dt.date(1960, 5, 5), None]),
    "timestamp": table("k timestamp", k=_UTC_TIMES),
    "timestamp-ntz": table("k timestamp_ntz", k=list(_TIMES)),
    "interval": table(
        "k interval day to second",
        k=[dt.timedelta(0), dt.timedelta(days=-3, microseconds=7), dt.timedelta(days=99_999), None],
    ),
    "time": table("k time(6)", k=[dt.time(0), dt.time(12, 34, 56, 789_123), dt.time.max, None]),
    "void": table("a long, k void", a=[1, 2, None], k=[None, None, None]),
    "two-columns": table("a long, b string", a=[1, None, 1, None], b=["x", "x", None, None]),
    "columns-swapped": table("a string, b int", a=["x", "x", None, None], b=[1, None, 1, None]),
    "struct": table(
        "k struct<a:int,b:string>", k=[{"a": 1, "b": "x"}, {"a": None, "b": "x"}, {"a": 1, "b": None}, None]
    ),
    "array": table("k array<int>", k=[[], [1], [1, 2, 3], [None], [1, None, 2], None]),
    "nested": table(
        "k array<struct<a:float,b:array<date>>>",
        k=[[{"a": -0.0, "b": [dt.date(2000, 1, 1), None]}, None], [{"a": None, "b": None}], [], None],
    ),
    "odd-names": table(
        "`a b` long, `c``d` struct<`e.f`:int>", **{"a b": [1, 2], "c`d": [{"e.f": 3}, {"e.f": None}]}
    ),
}


def golden_hashes() -> dict[str, list[int]]:
    hashes: dict[str, list[int]] = json.loads(GOLDEN.read_text())
    return hashes
