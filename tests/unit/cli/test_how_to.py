"""The code in the how-tos does what the text around it says."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import holdfast as hf
from holdfast import errors, testing
from holdfast.cli import main
from holdfast.cli.closed_output import CLOSED_OUTPUT
from holdfast.cli.options import UNEXPECTED
from holdfast.connectors.memory import MemorySink
from holdfast.graph.outline import outline
from holdfast.graph.streams import Declaration
from holdfast.graph.validate import check
from holdfast.state.encoding.arrow_values import column_of, objects_of
from holdfast.state.encoding.coercion import Misfit, settler
from holdfast.state.encoding.types import parse_schema, parse_type
from tests.unit.tasks.operators.operator_kit import Harness

HOW_TO = Path(__file__).parents[3] / "docs" / "how-to"


def python_blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (HOW_TO / page).read_text(), flags=re.DOTALL)


def defined_in(page: str) -> dict[str, Any]:
    """What the Python blocks of a page define."""
    names: dict[str, Any] = {}
    for block in python_blocks(page):
        exec(compile(block, page, "exec"), names)
    return names


def test_the_sink_keeps_its_promises_and_is_checked_as_the_page_says(tmp_path: Path) -> None:
    page = defined_in("write-a-source-or-sink.md")
    report = page["check_my_sink"](tmp_path)
    assert set(report.not_asked) == {
        "mark-before-begin", "mark-follows", "mark-never-goes-back", "taken-away", "accepted-is-shown",
    }  # fmt: skip
    page["SqlitePublisher"].published_through = lambda publisher: 0
    (tmp_path / "forgetful").mkdir()
    with pytest.raises(AssertionError, match=r"SqliteSink breaks \d of 14 promises .*\n\nagain-shows-once: "):
        page["check_my_sink"](tmp_path / "forgetful")


def test_the_source_plans_ranges_and_a_job_takes_it() -> None:
    names = defined_in("write-a-source-or-sink.md")
    names["newest_id"] = lambda path: 25
    report = names["check_my_source"](None, "somewhere")
    assert {"slices-follow", "max-rows", "goes-on", "older-position", "exhausted", "lag"} <= set(report.kept)
    job = Declaration("j")
    job.source(names["Table"]("somewhere"), uid="in").sink(MemorySink(), uid="out")
    check(job.graph())


def test_the_tests_of_the_page_pass() -> None:
    tests = {
        name: test for name, test in defined_in("test-without-spark.md").items() if name.startswith("test_")
    }
    assert len(tests) == 6
    for test in tests.values():
        test()


def test_the_page_tells_everything_that_a_harness_has() -> None:
    text = (HOW_TO / "test-without-spark.md").read_text()
    public = [name for name in dir(testing.Harness) if not name.startswith("_")]
    assert not [name for name in public if not re.search(rf"`(?:Harness\.)?{name}[`(]", text)]


def test_the_job_in_parts_is_in_three_of_them() -> None:
    graph = defined_in("parts.md")["job"].graph()
    check(graph)
    found = outline(graph)
    assert [(part.name, part.protection) for part in found.parts] == [
        ("main", "Rollback"), ("scoring", "PassiveStandby"), ("archive", "Rollback"),
    ]  # fmt: skip
    assert [channel.limit_bytes for channel in found.channels] == [1 << 30, 256 << 20]


def functions_of_the_guide() -> dict[str, Any]:
    """What the blocks of the page define, all but the one that runs Spark."""
    names: dict[str, Any] = {}
    for block in python_blocks("write-a-function.md"):
        if "job.run(" not in block:
            exec(compile(block, "write-a-function.md", "exec"), names)
    return names


def test_the_functions_of_the_guide_do_what_they_say() -> None:
    names = functions_of_the_guide()
    check(names["job"].graph())
    visits = Harness(names["Visits"](), parse_schema("user string, page string"), ["user"])
    assert visits.rows_of([("anna", "/home"), ("ben", "/home")]) == [("anna", 1, None), ("ben", 1, None)]
    assert visits.rows_of([("anna", "/kelp")]) == [("anna", 2, "/home")]

    bought = parse_schema("user string, item string, price decimal(12,2), paid boolean")
    basket = Harness(names["Basket"](), bought, ["user"])
    rows = [("anna", "tea", Decimal("2.50"), False), ("anna", "jam", Decimal("4.00"), False)]
    basket.epoch_of(rows)
    basket.epoch_of(rows[:1])
    last = {"item": "tea", "at": 1_000}
    assert basket.rows_of([("anna", None, None, True)]) == [("anna", ["jam", "tea"], Decimal("9.00"), last)]
    assert basket.state.entries == {}

    paid = parse_schema("account string, amount string")
    payments = Harness(names["Payments"](), paid, ["account"], on_error="dead-letter")
    result = payments.epoch_of([("anna", "20000"), ("ben", "?"), ("anna", "1")])
    assert result.outputs[""].to_pylist() == [
        {"account": "anna", "balance": 20_000}, {"account": "anna", "balance": 20_001},
    ]  # fmt: skip
    assert result.outputs["large"].to_pylist() == [{"account": "anna", "amount": 20_000}]
    assert list(result.outputs["!dead"].to_pylist()[0]) == ["row", "key", "error", "epoch"]

    peaks = Harness(names["Peak"](), parse_schema("sensor string, reading double"), ["sensor"])
    peaks.epoch_of([("a", 1.0), ("b", 5.0), ("a", 3.0)])
    assert peaks.rows_of([("a", 2.0), ("a", 4.0), ("b", 5.5)]) == [("a", 4.0, 3.0), ("b", 5.5, 5.0)]


REFUSED = """
class Totals(hf.KeyedFunction):
    output = "user string, total long"
    outputs = {{"large": "user string"}}
    total = hf.ValueState("long", default=0)

    def process(self, row, ctx):
        {code}
"""


def test_every_refusal_of_the_guide_is_what_it_says() -> None:
    text = (HOW_TO / "write-a-function.md").read_text().split("## When something is refused")[1]
    rows = re.findall(r"^\| `([^`]+)`.* \| `(.+?)(?:\.\.\.)?` \|$", text, flags=re.MULTILINE)
    assert len(rows) == 8
    for code, said in rows:
        names: dict[str, Any] = {"hf": hf}
        exec(REFUSED.format(code=code), names)
        harness = Harness(names["Totals"](), parse_schema("user string, n long"), ["user"])
        with pytest.raises(errors.UserCodeError) as refused:
            harness.epoch_of([("anna", 1)])
        assert said.rstrip(" ;,") in refused.value.cause, code
        assert (refused.value.uid, refused.value.key) == ("op", "anna")


PYTHON_TYPES = [
    ("boolean", True, [np.True_]),
    ("byte", 5, [np.int64(5)]),
    ("long", 5, [np.int32(5)]),
    ("float", 0.5, [np.float64(0.5)]),
    ("double", 2.0, [2, np.int64(2)]),
    ("decimal(9,2)", Decimal("5.00"), [5, Decimal("5")]),
    ("string", "é", []),
    ("binary", b"x", [bytearray(b"x")]),
    ("date", dt.date(2024, 2, 29), []),
    ("timestamp", dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC), [dt.datetime(2024, 2, 29, 12)]),
    ("timestamp_ntz", dt.datetime(2024, 2, 29, 12), []),
    ("interval day to second", dt.timedelta(seconds=5), []),
    ("time(6)", dt.time(1, 2), []),
    ("array<long>", [1, None], [(1, None)]),
    ("map<string,long>", {"a": 1}, []),
    ("map<array<long>,long>", {(1, 2): 1}, []),
    ("struct<a:long,b:string>", (1, None), [{"a": 1}, [1, None], {"b": None, "a": 1}]),
]
NEVER_TAKEN: list[tuple[str, Any]] = [
    ("boolean", 1), ("byte", 128), ("long", True), ("long", 1.0), ("long", "1"), ("double", "1"),
    ("decimal(9,2)", 1.5), ("decimal(9,2)", Decimal("1.005")), ("string", b"x"), ("binary", "x"),
    ("date", dt.datetime(2024, 2, 29)), ("date", 5), ("timestamp", 5), ("timestamp", dt.date(2024, 2, 29)),
    ("timestamp_ntz", dt.datetime(2024, 2, 29, tzinfo=dt.UTC)), ("interval day to second", 5),
    ("time(6)", 5), ("array<long>", "12"), ("map<string,long>", [("a", 1)]), ("struct<a:long>", 1),
]  # fmt: skip


@pytest.mark.parametrize(("ddl", "read", "taken"), PYTHON_TYPES, ids=lambda each: str(each)[:30])
def test_the_python_types_of_the_guide_are_those_that_are_read(ddl: str, read: Any, taken: Any) -> None:
    for given in (read, None, *taken):
        (found,) = objects_of(column_of([given], parse_type(ddl)))
        assert found == (None if given is None else read)
        assert given is None or isinstance(found, hf.Row if "struct" in ddl else type(read))
        assert settler(parse_type(ddl))(given) == found


@pytest.mark.parametrize(("ddl", "value"), NEVER_TAKEN)
def test_what_the_guide_does_not_name_is_refused(ddl: str, value: Any) -> None:
    with pytest.raises(Misfit):
        settler(parse_type(ddl))(value)


def test_every_option_and_exit_code_of_the_page_exists() -> None:
    text = (HOW_TO / "run.md").read_text()
    known = CliRunner().invoke(main.app, ["run", "--help"], env={"COLUMNS": "200", "TERM": "dumb"}).stdout
    options = set(re.findall(r"`(--[a-z-]+)", text))
    assert options
    assert not [option for option in options if option not in known]
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", text, flags=re.MULTILINE)}
    raised = {error.exit_code for error in vars(errors).values() if isinstance(error, type)}
    assert codes | {errors.HoldfastError.exit_code} == {0, UNEXPECTED, CLOSED_OUTPUT, *raised}
