"""What commands print, for people and for programs."""

from __future__ import annotations

import json

import pytest

from holdfast.cli.format import answer, counted, new_table, print_rows


def shown(capsys: pytest.CaptureFixture[str], found: list[str], *, as_json: bool, empty: str | None) -> str:
    print_rows(
        found,
        as_json=as_json,
        plain=lambda one: {"name": one},
        cells=lambda one: (one,),
        table=new_table("things", "name"),
        empty=empty,
    )
    return capsys.readouterr().out


def test_rows_are_a_table_or_a_json_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, ["a", "[b]"], as_json=True, empty=None)
    assert [json.loads(line) for line in out.splitlines()] == [{"name": "a"}, {"name": "[b]"}]
    assert "│ [b]  │" in shown(capsys, ["a", "[b]"], as_json=False, empty=None)


def test_no_rows_are_an_empty_table_or_a_word_on_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert "name" in shown(capsys, [], as_json=False, empty=None)
    assert shown(capsys, [], as_json=False, empty="no things") == "no things\n"
    assert shown(capsys, [], as_json=False, empty="") == shown(capsys, [], as_json=True, empty="no") == ""


def test_what_does_not_fit_a_column_goes_on_below(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    out = shown(capsys, ["s3://bucket/a/long/name"], as_json=False, empty=None)
    cells = [line.strip("│ ") for line in out.splitlines() if line.startswith("│")]
    assert "".join(cells) == "s3://bucket/a/long/name"


def test_an_answer_is_lines_or_one_json_line(capsys: pytest.CaptureFixture[str]) -> None:
    answer(False, {"n": 1}, "one", "two")
    answer(True, {"n": 1}, "one", "two")
    assert capsys.readouterr().out == 'one\ntwo\n{"n": 1}\n'


def test_one_is_singular() -> None:
    assert [counted(n, "file") for n in (0, 1, 2_000)] == ["0 files", "1 file", "2,000 files"]
