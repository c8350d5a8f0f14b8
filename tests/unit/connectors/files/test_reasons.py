"""Why a row does not fit, in words."""

from __future__ import annotations

import pyarrow as pa
import pytest

from holdfast.connectors.files.reasons import LETTERS, RowForm, with_reasons

TYPES = {"user": "string", "amount": "bigint"}
NAMES = ["user", "amount"]


def form(format: str, **options: str) -> RowForm:
    return RowForm(format, options, TYPES, ("user",))


@pytest.mark.parametrize(
    ("row", "empty", "reason"),
    [
        ("nonsense", NAMES, "it is no JSON: Expecting value at character 1"),
        ('{"user": "a', NAMES, "it is no JSON: Unterminated string starting at at character 10"),
        ("null", NAMES, "it is JSON, but no object"),
        ('{"user": "a", "amount": "x"}', ["amount"], "column 'amount' is declared long, found \"x\""),
        (
            '[{"amount": 1}, {"amount": [1]}]',
            ["user", "amount"],
            "column 'amount' is declared long, found 1",
        ),
        ('{"user": "a", "amount": 1}', [], "a value does not fit the schema 'user string, amount long'"),
    ],
)
def test_json(row: str, empty: list[str], reason: str) -> None:
    assert form("json").reason(row, empty, NAMES) == reason


@pytest.mark.parametrize(
    ("row", "options", "reason"),
    [
        ("a", {}, "it has 1 field, expected are 2: user, amount"),
        ('"a,1,2"', {}, "it has 1 field, expected are 2: user, amount"),
        ("a|x", {"sep": "|"}, "column 'amount' is declared long, found 'x'"),
        ("a,", {}, "a value does not fit the schema 'user string, amount long'"),
    ],
)
def test_csv(row: str, options: dict[str, str], reason: str) -> None:
    assert form("csv", **options).reason(row, ["amount"], NAMES) == reason


def test_a_long_value_is_shown_short() -> None:
    reason = form("json").reason('{"amount": "' + "x" * 1_000 + '"}', ["amount"], NAMES)
    assert len(reason) < 150


def test_rows_get_their_file_as_people_write_it() -> None:
    rows = pa.RecordBatch.from_pylist(
        [{"file": "a%20b%25.json", "line": None, "row": "{}", "empty": NAMES, "columns": None}],
        schema=pa.schema(
            [
                ("file", pa.string()), ("line", pa.int64()), ("row", pa.string()),
                ("empty", pa.list_(pa.string())), ("columns", pa.list_(pa.string())),
            ]
        ),
    )  # fmt: skip
    (told,) = with_reasons(form("json"), "in/", iter([rows]))
    assert told.schema == LETTERS
    assert told.to_pylist() == [
        {
            "file": "in/a b%.json",
            "line": None,
            "row": "{}",
            "reason": "column 'user' is declared not null and has no value",
        }
    ]


def test_json_that_is_nested_too_deeply_has_a_reason_too() -> None:
    assert form("json").reason("[" * 100_000, NAMES, NAMES).startswith("it cannot be read as JSON: ")


def test_types_are_told_in_the_words_of_schemas() -> None:
    types = {"at": "struct<bigint:bigint,tags:array<smallint>>", "n": "map<tinyint,decimal(10,2)>"}
    told = RowForm("json", {}, types, ()).reason("{}", [], ["at"])
    assert told.endswith("'at struct<bigint:long,tags:array<short>>, n map<byte,decimal(10,2)>'")
