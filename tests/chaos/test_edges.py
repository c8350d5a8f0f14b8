"""Upgrades, kills, consumers and restores mixed by chance: nothing is lost, nothing doubled, or it is refused
with a remedy that works.

One seed is one walk: `HOLDFAST_EDGE_SEED=7 pytest tests/chaos/test_edges.py` begins with seed 7.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.connectors.contract import Mark
from holdfast.connectors.files.sink import FilePublisher
from holdfast.runtime import epoch_loop
from holdfast.runtime.epoch import recorded_plans
from holdfast.runtime.epoch.committer import Committer
from holdfast.runtime.epoch.publisher import Publishing
from tests.chaos.apps import Place
from tests.chaos.edge_lives import LivesWalk
from tests.chaos.edge_walk import Found, Walk
from tests.chaos.harness import Scenario

ROUNDS = int(os.environ.get("HOLDFAST_EDGE_ROUNDS", "200"))
"""In one process, in all."""
LIVES = int(os.environ.get("HOLDFAST_EDGE_LIVES", "20"))
"""Rounds with real processes."""
FIRST_SEED = int(os.environ.get("HOLDFAST_EDGE_SEED", "1"))
ROUNDS_PER_WALK = 20
SEEDS_MAX = 40
"""So many walks may go by before a missing safeguard is found out."""

EVERYTHING = {
    "ended: Killed", "ended: RestoreError", "ended: end", "ended: stop",
    "layout: add", "layout: remove", "layout: move", "layout: swap", "layout: replace", "layout: reorder",
    "layout: let", "layout: write", "brought: an older copy", "commit deleted", "commit damaged",
    "remedy: newer copy", "remedy: former job", "remedy: put aside",
}  # fmt: skip


@pytest.mark.timeout(1200)
def test_nothing_is_lost_or_doubled_or_it_is_refused_with_a_remedy(tmp_path: Path) -> None:
    """And a walk that meets only half of what there is would be green for nothing."""
    seen: Counter[str] = Counter()
    for seed in range(FIRST_SEED, FIRST_SEED + ROUNDS // ROUNDS_PER_WALK):
        walk = Walk(tmp_path / str(seed), seed)
        walk.go(ROUNDS_PER_WALK)
        seen += walk.seen
    assert not EVERYTHING - seen.keys(), "this never came about"


def test_the_same_seed_gives_the_same_story(tmp_path: Path) -> None:
    told = []
    for time in ("first", "second"):
        walk = Walk(tmp_path / time, FIRST_SEED)
        walk.go(5)
        # What a run says may depend on how long things take.
        done = [
            line.replace(str(tmp_path / time), "here")
            for line in walk.story
            if not line.startswith("  said: ")
        ]
        told.append([re.sub(r"[0-9a-f]{12,}|-\d+-[0-9a-f]+", "#", line) for line in done])
    assert told[0] == told[1]


@pytest.mark.heavy
@pytest.mark.timeout(3600)
def test_nothing_is_lost_or_doubled_when_processes_are_killed_meanwhile(tmp_path: Path) -> None:
    with Scenario(Place(tmp_path), app="tests.chaos.edge_app") as scenario:
        LivesWalk(scenario, FIRST_SEED).go(LIVES)


def by_stream_name(patch: pytest.MonkeyPatch) -> None:
    """Staged rows go to the sinks that read a stream of that name now."""

    def recipients(self: Publishing, file: Any) -> tuple[str, ...]:
        return tuple(uid for uid, name in self._streams.items() if name == file.stream)

    patch.setattr(Publishing, "recipients", recipients)


def sinks_not_asked(patch: pytest.MonkeyPatch) -> None:
    """What is planned does not depend on what the sinks show."""

    def unasked(chain: Any, view: Any, shape: Any, shown: Any, say: Any) -> Any:
        return recorded_plans.recorded_plans(chain, view, shape, {}, say)

    patch.setattr(epoch_loop, "recorded_plans", unasked)


def no_marks(patch: pytest.MonkeyPatch) -> None:
    """A file sink knows what it shows from the files that are there."""

    def publish(self: FilePublisher, epoch: int, parts: Any) -> None:
        tables = [part.load() for part in parts if part.rows]
        if tables:
            self._storage.put_new(f"{self._uid}-{epoch:012d}.{self._format}", self._encode(tables))

    patch.setattr(FilePublisher, "mark", lambda self: Mark(self._newest_file()))
    patch.setattr(FilePublisher, "publish", publish)


def clean_ends_not_recorded(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Committer, "record_published", lambda self, *_: None)


def beginnings_not_marked(patch: pytest.MonkeyPatch) -> None:
    """A sink that begins elsewhere does not remember there what it has shown before."""
    begin = FilePublisher.begin
    patch.setattr(FilePublisher, "begin", lambda self, through: begin(self, 0))


def begun_too_early(patch: pytest.MonkeyPatch) -> None:
    """A run that is refused afterwards has taken its sinks' directories."""
    asked = Publishing._asked

    def begun(self: Publishing, uid: str, publisher: Any, view: Any) -> Mark:
        mark = asked(self, uid, publisher, view)
        publisher.begin(0)
        return mark

    patch.setattr(Publishing, "_asked", begun)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "control",
    [
        by_stream_name, sinks_not_asked, no_marks, clean_ends_not_recorded, beginnings_not_marked,
        begun_too_early,
    ],
)  # fmt: skip
def test_a_missing_safeguard_is_found_out(
    control: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control(monkeypatch)
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS_MAX):
        try:
            Walk(tmp_path / str(seed), seed).go(ROUNDS_PER_WALK)
        except Found:
            return
    pytest.fail(f"{SEEDS_MAX} walks did not find it")
