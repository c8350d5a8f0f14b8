"""Names of files that are gone are forgotten in time, and no file is read twice or not at all."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from holdfast.connectors.files import planned_files
from holdfast.connectors.files.locations import Found, Listing, Wanted
from holdfast.connectors.files.planned_files import FORGET_AFTER_MS
from holdfast.connectors.files.source import FileReader, FileSource

SOURCE = FileSource("in", format="json", schema="n long")


class Place:
    """A directory that is a set of names."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def list(self, wanted: Wanted, watched: Mapping[str, Found]) -> Listing:
        return Listing(new=[Found(name, 1, None) for name in sorted(self.names) if wanted(name)])

    def readable(self, name: str) -> bool:
        return True

    def refreshed(self, found: Found) -> Found | None:
        return found


class Checkpoint:
    """The place's files, read by one reader after the other; what was planned is committed."""

    def __init__(self) -> None:
        self.place = Place()
        self.notes: list[Any] = []
        self.position: int | None = None
        self.read: list[str] = []
        self.now_ms = 0
        self.restart()

    def restart(self) -> None:
        self.reader = FileReader(SOURCE, self.place, self.notes)  # type: ignore[arg-type]

    def plan(self) -> Iterator[str]:
        """Plan what is there, one slice."""
        planned = self.reader.next(self.position, None, self.now_ms)
        if planned is None:
            return
        self.notes = [*([] if planned.replaces_notes else self.notes), *planned.notes]
        self.position = planned.end
        for name, _, _ in planned.detail:
            self.read.append(name)
            yield name


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planned_files, "FORGET_MIN", 20)


def test_what_is_remembered_follows_the_files_that_are_there_not_those_that_passed() -> None:
    job, chance = Checkpoint(), random.Random(7)
    remembered = []
    for number in range(2_000):
        job.place.names.add(f"{number}.json")
        job.now_ms += FORGET_AFTER_MS // 20
        if chance.random() < 0.02:
            job.restart()
        list(job.plan())
        job.place.names -= set(job.read[:-10])
        remembered.append(len(job.notes))
    assert sorted(job.read) == sorted(f"{number}.json" for number in range(2_000))
    assert max(remembered) < 150
    assert len(job.reader._read.known) < 150


def test_a_directory_that_is_empty_for_hours_makes_nothing_new() -> None:
    job = Checkpoint()
    job.place.names = {f"{number}.json" for number in range(100)}
    before = set(job.plan())
    for _ in range(5):
        job.now_ms += FORGET_AFTER_MS
        job.place.names = set()
        assert not list(job.plan())
    job.place.names = before | {"new.json"}
    assert list(job.plan()) == ["new.json"]


def test_a_name_is_forgotten_only_if_it_is_still_gone_an_hour_later() -> None:
    job = Checkpoint()
    old = {f"{number}.json" for number in range(100)}
    job.place.names = set(old)
    list(job.plan())
    job.place.names = {"a.json"}
    list(job.plan())  # It shows that a hundred are gone,
    job.place.names |= {"b.json"}
    list(job.plan())  # and here which ones.
    job.now_ms += FORGET_AFTER_MS - 1
    for name in ("x.json", "y.json"):
        job.place.names = {name}
        list(job.plan())
    job.place.names = old | {"c.json"}
    assert list(job.plan()) == ["c.json"]
    job.place.names = {"d.json"}
    list(job.plan())
    job.now_ms += 1
    for name in ("e.json", "f.json"):
        job.place.names = {name}
        list(job.plan())
    job.place.names = {"0.json", "e.json"}
    assert list(job.plan()) == ["0.json"], "it was gone for an hour: a new file"


def test_what_was_forgotten_is_told_again_if_the_slice_that_told_it_was_thrown_away() -> None:
    job = Checkpoint()
    job.place.names = {f"{number}.json" for number in range(100)}
    list(job.plan())
    job.place.names = set()
    for number in range(4):
        job.now_ms += FORGET_AFTER_MS
        job.place.names = {f"late-{number}.json"}
        planned = job.reader.next(job.position, None, job.now_ms)
        assert planned is not None
        if planned.replaces_notes:
            again = job.reader.next(job.position, None, job.now_ms)
            assert again == planned
            return
        job.position = planned.end
    pytest.fail("nothing was forgotten")
