"""`holdfast state`, as a shell sees it."""

from __future__ import annotations

import csv
import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from holdfast.checkpoint.chain.pins import read_pins
from holdfast.cli.main import app
from holdfast.cli.state import key_of, key_written
from holdfast.state.encoding.layout import StateLayout
from holdfast.state.encoding.types import parse_type
from tests.unit.cli.shell import call, refusal, text
from tests.unit.inspect.stored import MadeCheckpoint


@pytest.mark.parametrize(
    ("type", "given", "meant"),
    [
        ("date", "2026-01-02", dt.date(2026, 1, 2)),
        ("decimal(10,2)", "1.50", Decimal("1.50")),
        ("binary", "AP8=", b"\x00\xff"),
        ("double", 3, 3.0),
        ("long", 3, 3),
        ("timestamp_ntz", "2026-01-02T03:04:05", dt.datetime(2026, 1, 2, 3, 4, 5)),
        ("string", "3", "3"),
        ("boolean", True, True),
    ],
)
def test_keys_are_read_from_json_by_their_type(type: str, given: Any, meant: Any) -> None:
    layout = StateLayout("op", pa.schema([("k", parse_type(type))]), ())
    assert key_of(layout, given) == meant
    assert key_of(layout, {"k": given}) == {"k": meant}


@pytest.mark.parametrize(
    ("type", "typed", "meant"),
    [
        ("string", "c1", "c1"),
        ("string", '"c1"', "c1"),
        ("string", "12", "12"),
        ("string", "{12", "{12"),
        ("string", "true", "true"),
        ("string", "null", None),
        ("string", '{"k": "c1"}', {"k": "c1"}),
        ("long", "12", 12),
        ("date", "2026-01-02", dt.date(2026, 1, 2)),
    ],
)
def test_a_key_of_one_column_is_typed_as_it_is(type: str, typed: str, meant: Any) -> None:
    layout = StateLayout("op", pa.schema([("k", parse_type(type))]), ())
    assert key_written(layout, typed) == meant


def test_a_key_of_several_columns_says_how_to_write_it(made: MadeCheckpoint) -> None:
    where = ("state", "get", "--checkpoint", made.url, "--uid", "totals", "--key")
    for typed in ("u1", "12", '"u1"'):
        error = refusal(*where, typed, code=2)
        assert "whose key has the columns user string, day" in error
        assert """write all of them as JSON: --key '{"user": "...", "day": 1}'""" in error


def test_the_first_keys_are_shown(made: MadeCheckpoint) -> None:
    rows = call("state", "show", made.url, "--limit", "3")
    assert len(rows) == 3
    assert rows[0].keys() == {"operator", "user", "day", "total", "tags", "seen", "user_", "key_group"}
    assert len(call("state", "show", made.url)) == 9
    assert len(call("state", "show", f"{made.url}@1")) == 10
    assert len(call("state", "show", f"{made.url}#1", "--uid", "totals")) == 10
    assert "u1" in text("state", "show", made.url)
    assert read_pins(made.storage).records == ()


def test_key_groups_are_summed_up(made: MadeCheckpoint) -> None:
    groups = call("state", "show", made.url, "--sizes")
    assert [group["key_group"] for group in groups] == [0, 1, 2, 3]
    assert sum(group["keys"] for group in groups) == 9
    assert all(group["bytes"] >= 20 * group["keys"] for group in groups)


@pytest.mark.parametrize("format", ["parquet", "csv", "json"])
def test_state_is_exported_for_other_tools(made: MadeCheckpoint, tmp_path: Path, format: str) -> None:
    (told,) = call("state", "export", made.url, "--format", format, "--out", str(tmp_path / "out"))
    assert told["rows"] == 9
    path = Path(told["file"])
    if format == "parquet":
        rows = duckdb.sql(f"select user, total, tags from '{path}'").fetchall()
    elif format == "csv":
        with path.open() as lines:
            read = csv.DictReader(lines)
            rows = [(row["user"], int(row["total"]), json.loads(row["tags"] or "null")) for row in read]
    else:
        objects = [json.loads(line) for line in path.read_text().splitlines()]
        rows = [(row["user"], row["total"], row["tags"]) for row in objects]
    expected = {key[0]: (values["total"], values.get("tags")) for key, values in made.model.items()}
    assert {user: (total, tags) for user, total, tags in rows} == expected
    assert sorted(path.parent.iterdir()) == [path]
    again = CliRunner().invoke(
        app, ["state", "export", made.url, "--format", format, "--out", str(path.parent)]
    )
    assert again.exit_code == 2


def test_a_difference_is_the_exit_code(made: MadeCheckpoint) -> None:
    (same,) = call("state", "diff", made.url, f"{made.url}#2")
    assert (same["added"], same["removed"], same["changed"]) == (0, 0, 0)
    (found,) = call("state", "diff", f"{made.url}@1", made.url, code=1)
    assert (found["added"], found["removed"], found["changed"]) == (0, 1, 1)
    told = text("state", "diff", f"{made.url}@1", made.url, code=1)
    assert "0 keys added, 1 removed, 1 changed" in told
    assert '+ {"total": 100' in told
    assert text("state", "diff", made.url, made.url) == "totals: equal\n"
    assert read_pins(made.storage).records == ()


def test_get_shows_the_state_of_one_key(made: MadeCheckpoint) -> None:
    where = ("--checkpoint", made.url, "--uid", "totals", "--key")
    (found,) = call("state", "get", *where, '{"user": "u1", "day": 1}')
    assert found["values"]["total"] == 100
    assert (found["commit"], found["epoch"], found["found"]) == (2, 2, True)
    (absent,) = call("state", "get", *where, '{"user": "u2", "day": 2}', code=1)
    assert not absent["found"]
    assert 'seen = {"p": 1}' in text("state", "get", *where, '{"user": "u1", "day": 1}')
    call("state", "get", *where, "{user", code=2)
    call("state", "get", *where, '{"user": "u1", "day": "soon"}', code=2)


def test_lists_of_operators_without_keys_are_shown_and_exported(made: MadeCheckpoint, tmp_path: Path) -> None:
    made.commit_lists([1, 2], [3])
    shown = [row for row in call("state", "show", made.url) if row["operator"] == "buffer"]
    assert [(row["state"], row["shard"], row["items"]) for row in shown] == [
        ("pending", 0, [1, 2]),
        ("pending", 1, [3]),
    ]
    assert "buffer.pending, shard 0: 2 items, the first 1" in text("state", "show", made.url, "--limit", "1")
    told = call("state", "export", made.url, "--out", str(tmp_path / "out"), "--uid", "buffer")
    assert told[0]["rows"] == 3
    items = duckdb.sql(f"select shard, item from '{told[0]['file']}'").fetchall()
    assert items == [(0, "1"), (0, "2"), (1, "3")]


def test_a_checkpoint_without_state_says_so(made: MadeCheckpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.cli.state._operators", lambda stored, uid: [])
    assert "holds no state: its job has no operators that keep any" in text("state", "show", made.url)
    assert call("state", "show", made.url) == []
