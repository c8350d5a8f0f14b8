"""The demo's proof must be able to fail, and its kills to be repeated."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from holdfast.cli.demo.chart import HEIGHT, WIDTH, Mark, Sample, picture, rates
from holdfast.cli.demo.command import plan_kills, play
from holdfast.cli.demo.proof import Verdict, broken_sequences, prove, read_sink
from holdfast.errors import DefinitionError

EVENTS = 20_000


def right_clicks() -> dict[str, list[int]]:
    """By the plainest of loops: not the vectorised way of the proof itself."""
    clicks: dict[int, int] = {}
    spent: dict[int, int] = {}
    rows: dict[str, list[int]] = {"event": [], "user": [], "click": [], "spent": []}
    for event in range(EVENTS):
        user = event * 48271 % 2147483647 % 5000
        clicks[user] = clicks.get(user, 0) + 1
        spent[user] = spent.get(user, 0) + event * 39373 % 2147483647 % 1000
        for name, value in zip(rows, (event, user, clicks[user], spent[user]), strict=True):
            rows[name].append(value)
    return rows


def right_pages() -> pa.Table:
    """As the job emits them: an older row of each page, then the newest."""
    views, spent = [0] * 40, [0] * 40
    for event in range(EVENTS):
        page = event * 69621 % 2147483647 % 40
        views[page] += 1
        spent[page] += event * 39373 % 2147483647 % 1000
    older = {"page": list(range(40)), "views": [1] * 40, "spent": [0] * 40}
    return pa.concat_tables(
        [pa.table(older), pa.table({"page": list(range(40)), "views": views, "spent": spent})]
    )


def verdict(clicks: pa.Table) -> Verdict:
    return prove(EVENTS, clicks, right_pages())


def test_what_arithmetic_gives_is_proven() -> None:
    found = verdict(pa.table(right_clicks()))
    assert found.proven, found
    assert (found.generated, found.counted) == (EVENTS, EVENTS)


def test_the_order_of_rows_does_not_matter() -> None:
    clicks = pa.table(right_clicks())
    assert verdict(clicks.take(pa.array(np.random.default_rng(1).permutation(EVENTS)))).proven


def test_a_lost_row_is_found() -> None:
    clicks = pa.table(right_clicks())
    found = verdict(pa.concat_tables([clicks.slice(0, 500), clicks.slice(501)]))
    assert (found.lost, found.doubled, found.proven) == (1, 0, False)
    assert found.gaps == 1


def test_a_doubled_row_is_found() -> None:
    clicks = pa.table(right_clicks())
    found = verdict(pa.concat_tables([clicks, clicks.slice(500, 2)]))
    assert (found.lost, found.doubled, found.proven) == (0, 2, False)
    assert found.gaps == 2


def test_state_that_was_added_to_twice_is_found() -> None:
    rows = right_clicks()
    rows["spent"][12_345] += 1
    found = verdict(pa.table(rows))
    assert (found.lost, found.doubled, found.wrong, found.proven) == (0, 0, 1, False)


def test_a_row_of_no_event_is_found() -> None:
    clicks = pa.table(right_clicks())
    stray = pa.table({"event": [EVENTS], "user": [1], "click": [1], "spent": [1]})
    assert verdict(pa.concat_tables([clicks, stray])).unknown == 1


def test_a_wrong_page_is_found() -> None:
    pages = right_pages()
    assert prove(EVENTS, pa.table(right_clicks()), pages.slice(0, pages.num_rows - 1)).wrong_pages == 1


def test_an_empty_sink_proves_nothing() -> None:
    found = prove(EVENTS, pa.table({}), pa.table({}))
    assert (found.lost, found.wrong_pages, found.proven) == (EVENTS, 40, False)


def test_numbers_with_a_gap_a_repeat_or_a_late_start_are_found() -> None:
    user = np.array([1, 1, 1, 2, 2, 3, 4, 4])
    click = np.array([1, 2, 4, 1, 1, 2, 2, 1])
    assert broken_sequences(user, click) == 3


def test_only_what_a_plain_reader_sees_is_read(tmp_path: Path) -> None:
    for name, value in (("b-2", 2), ("a-1", 1), ("_hidden", 3), (".tmp", 4)):
        pq.write_table(pa.table({"x": [value]}), tmp_path / f"{name}.parquet")
    assert read_sink(tmp_path).column("x").to_pylist() == [1, 2]


def test_one_seed_gives_the_same_kills() -> None:
    assert plan_kills(7, 5) == plan_kills(7, 5)
    assert plan_kills(7, 5) != plan_kills(8, 5)


def test_some_kills_hit_the_job_while_it_recovers() -> None:
    assert {kill.after for kill in plan_kills(7, 4)} == {"rows", "recovery"}


def test_a_directory_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(DefinitionError, match="is not empty"):
        play(Console(quiet=True), seed=1, kills=1, events=10, directory=tmp_path)


def test_rates_are_what_became_visible_in_each_second() -> None:
    samples = [Sample(0.5, 0), Sample(0.9, 100), Sample(1.5, 150), Sample(3.2, 450)]
    assert rates(samples) == [100.0, 50.0, 0.0, 300.0]


def test_the_picture_is_well_formed_and_shows_every_kill_inside_it() -> None:
    samples = [Sample(second / 2, second * 1_000) for second in range(80)]
    marks = [Mark(5.0, "kill -9"), Mark(17.5, "kill <&> -9"), Mark(39.9, "kill -9")]
    root = ElementTree.fromstring(picture(samples, marks, "A & B", "x < y"))
    kills = [line for line in root.iter("{http://www.w3.org/2000/svg}line") if line.get("class") == "kill"]
    assert len(kills) == len(marks)
    places = [float(kill.attrib["x1"]) for kill in kills]
    assert places == sorted(places)
    for box in root.iter("{http://www.w3.org/2000/svg}rect"):
        x, y = float(box.get("x", 0)), float(box.get("y", 0))
        assert min(x, y) >= 0
        assert x + float(box.attrib["width"]) <= WIDTH
        assert y + float(box.attrib["height"]) <= HEIGHT + 0.1


def test_a_picture_of_nothing_is_still_a_picture() -> None:
    assert ElementTree.fromstring(picture([], [], "t", "s")).tag.endswith("svg")
