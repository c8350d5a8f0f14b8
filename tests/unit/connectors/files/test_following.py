"""A reader of files that follows what another process has planned doubles no file and loses none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.connectors.contract import Slice, Waiting
from holdfast.connectors.files.planned_files import ReadNames
from holdfast.connectors.files.source import FileReader, FileSource


def put(directory: Path, name: str, mtime: int = 1) -> None:
    (directory / name).write_text('{"n": 1}\n')
    os.utime(directory / name, ns=(mtime, mtime))


def reader(directory: Path) -> FileReader:
    return FileSource(directory, format="json", schema="n long").reader([])


def planned(reader: FileReader, after: int | None = None) -> Slice:
    slice = reader.next(after, None, 0)
    assert slice is not None
    return slice


def names_of(*slices: Slice) -> list[str]:
    return [entry[0] for slice in slices for entry in slice.detail]


def test_what_was_drafted_here_and_not_planned_is_planned_later_and_what_was_planned_is_not(
    tmp_path: Path,
) -> None:
    ours, theirs = reader(tmp_path), reader(tmp_path)
    put(tmp_path, "b.json", 2)
    put(tmp_path, "c.json", 3)
    plan = planned(theirs)
    put(tmp_path, "a.json", 1)
    drafted = planned(ours)
    assert names_of(drafted) == ["a.json", "b.json", "c.json"]
    ours.follow(plan)
    assert names_of(planned(ours, plan.end)) == ["a.json"]


def test_a_plan_with_more_files_than_were_seen_here_is_followed(tmp_path: Path) -> None:
    ours, theirs = reader(tmp_path), reader(tmp_path)
    put(tmp_path, "a.json", 1)
    planned(ours)
    put(tmp_path, "b.json", 2)
    plan = planned(theirs)
    ours.follow(plan)
    put(tmp_path, "c.json", 3)
    assert names_of(planned(ours, plan.end)) == ["c.json"]


def test_files_that_wait_here_and_are_planned_by_another_do_not_wait_any_more(tmp_path: Path) -> None:
    ours, theirs = reader(tmp_path), reader(tmp_path)
    for number in range(3):
        put(tmp_path, f"{number}.json", number)
    first = theirs.next(None, 1, 0)
    assert first is not None
    assert ours.waiting(None) is None
    ours.exhausted(None)
    assert ours.waiting(None) == Waiting(3, 27)
    ours.follow(first)
    left = 3 - len(names_of(first))
    assert ours.waiting(first.end) == Waiting(left, 9 * left)


def test_notes_that_take_the_place_of_all_earlier_ones_do_so_here_too() -> None:
    names = ReadNames(["gone", "kept"])
    names.go_to(2)
    names.follow(Slice(2, 3, detail=[["new", 1, 1]], notes=("kept", "new"), replaces_notes=True))
    assert (names.known, names.position) == ({"kept", "new"}, 3)
    assert not names.go_to(2), "the slice may be thrown away"
    assert names.known == {"kept"}


Looks = st.lists(st.tuples(st.integers(0, 1), st.booleans(), st.integers(0, 2)), min_size=1, max_size=10)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(Looks)
def test_every_file_is_planned_once_whichever_of_two_plans(
    tmp_path_factory: pytest.TempPathFactory, turns: list[tuple[int, bool, int]]
) -> None:
    """Each turn: which of the two plans, whether the other has drafted, and how many files came before."""
    directory = tmp_path_factory.mktemp("in")
    readers, plans, position, count = [reader(directory), reader(directory)], [], None, 0
    for who, drafts, new in [*turns, (0, True, 1)]:
        if drafts:
            readers[1 - who].next(position, 2, 0)
        for _ in range(new):
            # Older than what is there, so that it comes before what others have drafted.
            put(directory, f"{count}.json", 1_000 - count)
            count += 1
        plan = readers[who].next(position, None, 0)
        if plan is not None:
            readers[1 - who].follow(plan)
            plans.append(plan)
            position = plan.end
    rest = readers[1].next(position, None, 60_000)
    found = names_of(*plans, *([rest] if rest is not None else []))
    assert sorted(found) == sorted(f"{number}.json" for number in range(count))
