"""The code in the how-tos does what the text around it says."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa
from typer.testing import CliRunner

from holdfast import errors
from holdfast.cli import main, telling
from holdfast.graph.streams import Declaration
from holdfast.graph.validate import check
from holdfast.io.contract import Sink, Source, StagedPart
from holdfast.io.memory import MemorySink

HOW_TO = Path(__file__).parents[3] / "docs" / "how-to"


def defined_in(page: str, word: str) -> dict[str, Any]:
    """What the one Python block with `word` in it defines."""
    blocks = re.findall(r"```python\n(.*?)```", (HOW_TO / page).read_text(), flags=re.DOTALL)
    (block,) = [block for block in blocks if word in block]
    names: dict[str, Any] = {}
    exec(compile(block, page, "exec"), names)
    return names


def part(*rows: tuple[str, int]) -> StagedPart:
    users, totals = zip(*rows, strict=True)
    return StagedPart(0, len(rows), lambda: pa.table({"user": users, "total": totals}))


def test_the_sink_shows_an_epoch_once_however_often_it_is_published(tmp_path: Path) -> None:
    sink = defined_in("write-a-source-or-sink.md", "class SqliteSink")["SqliteSink"](str(tmp_path / "db"))
    assert isinstance(sink, Sink)
    for _ in range(2):  # a second run, after a crash
        publisher = sink.publisher("job", "out")
        publisher.publish(1, [part(("anna", 8), ("ben", 1))])
        publisher.publish(2, [part(("anna", 12))])
        publisher.publish(2, [part(("anna", 12))])
        assert publisher.published_through() == 2
        publisher.close()
    rows = sqlite3.connect(tmp_path / "db").execute("select * from totals order by total").fetchall()
    assert rows == [("ben", 1), ("anna", 8), ("anna", 12)]


def test_the_source_plans_ranges_and_a_job_takes_it() -> None:
    names = defined_in("write-a-source-or-sink.md", "class Table:")
    names["newest_id"] = lambda path: 25
    source = names["Table"]("somewhere")
    assert isinstance(source, Source)
    reader = source.reader([])
    first = reader.next(None, 10, 0)
    assert (first.start, first.end, first.rows) == (None, 10, 10)
    assert reader.next(20, 10, 0).end == 25
    assert reader.next(25, 10, 0) is None
    assert reader.exhausted(25)
    assert reader.lag(10) == 15
    job = Declaration("j")
    job.source(source, uid="in").sink(MemorySink(), uid="out")
    check(job.graph())


def test_every_option_and_exit_code_of_the_page_exists() -> None:
    text = (HOW_TO / "run.md").read_text()
    known = CliRunner().invoke(main.app, ["run", "--help"], env={"COLUMNS": "200", "TERM": "dumb"}).stdout
    options = set(re.findall(r"`(--[a-z-]+)", text))
    assert options
    assert not [option for option in options if option not in known]
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", text, flags=re.MULTILINE)}
    raised = {error.exit_code for error in vars(errors).values() if isinstance(error, type)}
    assert codes | {errors.HoldfastError.exit_code} == {0, telling.UNEXPECTED, *raised}
