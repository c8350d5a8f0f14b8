from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.checkpoint.chain.commits import Chain
from holdfast.checkpoint.chain.plans import Plans
from holdfast.checkpoint.chain.skip import choose, give_up
from holdfast.checkpoint.store.records import PlannedSlice, PlanRecord
from holdfast.connectors.files.source import FileSource
from holdfast.errors import RestoreError
from holdfast.ids import CommitNumber, EpochId
from holdfast.storage.local_directory import LocalStorage
from tests.unit.checkpoint.kept import grow

A, B, C = ["a.json", 10, 1], ["b.json", 20, 2], ["c.json", 30, 3]
FILES = PlannedSlice(start=None, end=3, detail=[A, B, C], notes=("a.json", "b.json", "c.json"))
IDS = PlannedSlice(start=None, end=9, rows=9)


def planned(storage: LocalStorage) -> PlanRecord:
    plan = PlanRecord(
        epoch=1,
        attempt=1,
        term=1,
        run="r",
        parent=0,
        fingerprint="f",
        parallelism=2,
        clock_ms=5,
        slices={"files": FILES, "ids": IDS},
    )
    Plans(storage).write(plan)
    return plan


def newest(storage: LocalStorage, epoch: int = 1) -> PlanRecord:
    plan = Plans(storage).newest(EpochId(epoch))
    assert plan is not None
    return plan


def test_a_source_given_up_is_a_new_attempt_that_reads_nothing_of_it(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    before = planned(storage)
    choice = choose(storage, source="files")
    (part,) = choice.parts
    assert ([file.name for file in part.files], part.whole) == (["a.json", "b.json", "c.json"], True)
    assert choice.left == ("ids",)
    assert newest(storage) == before, "choosing touches nothing"
    give_up(storage, choice)
    after = newest(storage)
    assert after.attempt == 2
    assert after.slices["files"].skipped
    assert (after.slices["files"].end, after.slices["files"].notes) == (3, FILES.notes)
    assert after.slices["ids"] == IDS
    assert Plans(storage).read(EpochId(1), before.attempt) == before


def test_one_file_given_up_leaves_the_others_and_ends_at_the_same_position(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    planned(storage)
    choice = choose(storage, files=["in/b.json"])
    (part,) = choice.parts
    assert ([(file.name, file.size) for file in part.files], part.whole) == ([("b.json", 20)], False)
    assert choice.left == ("files", "ids")
    give_up(storage, choice)
    files = newest(storage).slices["files"]
    assert (files.detail, files.given_up, files.skipped) == ([A, C], ("b.json",), False)
    assert (files.end, list(files.notes)) == (3, list(FILES.notes))
    give_up(storage, choose(storage, files=["a.json"]))
    assert newest(storage).slices["files"].given_up == ("b.json", "a.json")
    give_up(storage, choose(storage, files=["c.json"]))
    assert newest(storage).slices["files"].skipped


def test_without_a_choice_all_that_the_epoch_reads_is_given_up(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    planned(storage)
    choice = choose(storage)
    assert [(part.source, part.rows) for part in choice.parts] == [("files", None), ("ids", 9)]
    give_up(storage, choice)
    assert all(part.skipped for part in newest(storage).slices.values())
    with pytest.raises(RestoreError, match="reads nothing any more"):
        choose(storage)


def test_of_an_epoch_without_rows_nothing_can_be_given_up(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    Plans(storage).write(replace(planned(storage), attempt=2, slices={}, closing=True))
    with pytest.raises(
        RestoreError, match=r"epoch 1 reads nothing: it runs what was due; change what on_timer"
    ):
        choose(storage)


def test_a_later_epoch_is_found_by_its_number_or_by_its_file(tmp_path: Path) -> None:
    # Several epochs may wait for one commit: the one that fails need not be the next.
    storage = LocalStorage(tmp_path)
    before = planned(storage)
    later = PlannedSlice(start=3, end=4, detail=[["d.json", 1, 1]], notes=("d.json",))
    Plans(storage).write(replace(before, epoch=2, slices={"files": later}))
    assert choose(storage, source="files", epoch=2).slices["files"].skipped
    assert choose(storage, files=["d.json"]).plan.epoch == 2
    give_up(storage, choose(storage, files=["d.json"]))
    assert newest(storage, 2).slices["files"].skipped
    assert newest(storage) == before
    with pytest.raises(RestoreError, match="epoch 0 is committed"):
        choose(storage, source="files", epoch=0)


def test_what_was_not_planned_cannot_be_given_up(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    with pytest.raises(RestoreError, match="no plan"):
        choose(storage)
    planned(storage)
    with pytest.raises(RestoreError, match=r"'other'; it reads files, ids"):
        choose(storage, source="other")
    with pytest.raises(RestoreError, match=r"'z\.json'; name one of: a\.json, b\.json, c\.json"):
        choose(storage, files=["z.json"])
    with pytest.raises(RestoreError, match=r"no file 'a\.json' of source 'ids'"):
        choose(storage, source="ids", files=["a.json"], epoch=1)


def test_a_plan_that_changed_since_it_was_shown_is_left_alone(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    before = planned(storage)
    choice = choose(storage, files=["a.json"])
    Plans(storage).write(replace(before, attempt=2))
    with pytest.raises(RestoreError, match="planned again meanwhile"):
        give_up(storage, choice)
    assert newest(storage).attempt == 2


@pytest.mark.parametrize("asked", [{}, {"epoch": 2}, {"files": ["a.json"]}])
def test_after_a_rewind_the_plan_that_was_committed_counts_and_not_a_newer_attempt(
    tmp_path: Path, asked: dict[str, Any]
) -> None:
    """Sinks may show what came of the committed plan: a start follows that one, and so must a skip."""
    storage = LocalStorage(tmp_path)
    committed = replace(planned(storage), epoch=2)
    other = PlannedSlice(start=None, end=4, detail=[["d.json", 1, 1]], notes=("d.json",))
    plans, chain = Plans(storage), Chain(storage)
    plans.write(committed)
    view = grow(chain, chain.load(), 2)
    chain.rewind(view.head, CommitNumber(1), term=1, run="run-1")
    plans.write(replace(committed, attempt=2, slices={"files": other}))
    choice = choose(storage, **asked)
    assert (choice.plan, choice.newest) == (committed, 2)
    written = give_up(storage, choice)
    assert (written.attempt, written.slices["ids"].end) == (3, IDS.end)
    with pytest.raises(RestoreError, match="name one of"):
        choose(storage, files=["d.json"])
    if "files" in asked:
        assert choose(storage, epoch=2).plan == written, "what was given up of it stays given up"


@pytest.mark.parametrize(
    "detail", [None, "a.json", [["a.json"]], [["a.json", "big", 1]], [["other.json", 1, 1]], {"a.json": 1}]
)
def test_what_another_source_planned_is_not_taken_for_files(tmp_path: Path, detail: object) -> None:
    storage = LocalStorage(tmp_path)
    plan = planned(storage)
    part = PlannedSlice(start=None, end=1, detail=detail, notes=("a.json",))
    Plans(storage).write(replace(plan, attempt=2, slices={"own": part}))
    with pytest.raises(RestoreError, match="no source reads files"):
        choose(storage, files=["a.json"])
    (given_up,) = choose(storage).parts
    assert given_up.files == ()


def test_what_a_file_source_plans_is_known_as_files(tmp_path: Path) -> None:
    storage, source = LocalStorage(tmp_path / "ck"), tmp_path / "in"
    source.mkdir()
    (source / "x.json").write_text("{}")
    plan = planned(storage)
    found = FileSource(source, format="json", schema="a long").reader([]).next(None, None, 0)
    assert found is not None
    part = PlannedSlice(start=found.start, end=found.end, detail=found.detail, notes=found.notes)
    Plans(storage).write(replace(plan, attempt=2, slices={"in": part}))
    (given_up,) = choose(storage).parts
    assert [(file.name, file.size) for file in given_up.files] == [("x.json", 2)]
