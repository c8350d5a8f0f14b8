"""A walk of rounds by chance: the job is changed, hurt, run, stopped, killed, robbed and restored.

One seed is one walk. A refusal has to leave everything as it was, and its remedy has to work.
"""

from __future__ import annotations

import random
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.admin.set_aside_rows import set_aside
from holdfast.chaos.inside.child import tightened
from holdfast.clock import SystemClock
from holdfast.runtime.control.run_flags import Wishes
from holdfast.storage.local_directory import LocalStorage
from tests.chaos import edge_kills, tables_for_spark
from tests.chaos.edge_kills import Killed, Moments
from tests.chaos.edges import CHANGES, STAYING, Books, Layout

DEADLINE_SECONDS = 60.0
COPIES_MAX = 3
REMEDIES_MAX = 9
"""Several sinks may have to be put right, one after the other."""
REWIND = "REWIND: "
"""What a life says that goes back past damage begins so."""
SETTLED_COMMITS = 4
"""After rows were put aside, so many commits have to follow before one is lost: what a person has decided is
not in any sink."""


class Found(AssertionError):
    """Something is lost, doubled or unusable; tells the whole story."""


@dataclass(frozen=True)
class Copy:
    """The checkpoint as it was once, and the job that it belongs to."""

    path: Path
    in_force: Layout
    last_epoch: int


class Walk:
    """One job and what becomes of it."""

    def __init__(self, root: Path, seed: int) -> None:
        self.books = Books(root)
        self.seed, self.chance = seed, random.Random(seed)
        self.layout = self.in_force = Layout()
        self.limit = 0
        self.story: list[str] = []
        self.seen: Counter[str] = Counter()
        self._copies: list[Copy] = []
        self._newest: Copy | None = None
        """What a restore has replaced: there to be brought back."""
        self._copied = 0
        self._unsettled_through = 0

    def go(self, rounds: int) -> None:
        for number in range(1, rounds + 1):
            self._tell(f"round {number}")
            self._round()
        self._tell("the end")
        self.limit += 5
        self._lead(self.layout, "end", 0, [])
        self._expect(self.books.wrong_with_main(self.limit))

    def _round(self) -> None:
        chance = self.chance
        if chance.random() < 0.3:
            self._tell(f"a consumer takes {self.books.consume(chance)} files")
        if chance.random() < 0.35:
            self._copy()
        self._hurt()
        if chance.random() < 0.6:
            self.layout, what = self.layout.changed(chance, STAYING if self._newest else CHANGES)
            self.seen[f"layout: {what.split()[0]}"] += 1
            self._tell(what)
        self.limit += chance.randrange(0, 25)
        self._run_by_chance()

    def _hurt(self) -> None:
        """Lose what is newest, in one of the ways in which it gets lost."""
        draw = self.chance.random()
        commits = sorted((self.books.checkpoint / "commits").glob("*"))
        if len(commits) < 2 or int(commits[-1].name) < self._unsettled_through or not self._sinks_know():
            return
        if draw < 0.15 and self._copies:
            copy = self.chance.choice(self._copies)
            self._keep_newest()
            self._bring(copy, "an older copy")
        elif draw < 0.25:
            self._keep_newest()
            commits[-1].unlink()
            self.books.lose()
            self._tell(f"commit {commits[-1].name} is deleted")
            self.seen["commit deleted"] += 1
        elif draw < 0.35:
            self._keep_newest()
            data = commits[-1].read_bytes()
            commits[-1].write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
            self._tell(f"commit {commits[-1].name} is damaged")
            self.books.lose()
            self.seen["commit damaged"] += 1

    def _sinks_know(self) -> bool:
        """Whether the job that is started next has the sinks of the last one, where they were told so."""
        return self.in_force.uids <= self.layout.uids and all(
            (self.books.outputs / directory / f"_holdfast-{uid}").exists()
            for uid, directory in self.layout.places
            if uid in self.in_force.uids
        )

    def _run_by_chance(self) -> None:
        chance = self.chance
        kind = chance.choice(("kill", "kill", "stop", "end"))
        at = chance.choice((chance.randrange(1, 60), chance.randrange(1, 300)))
        robbed = [chance.randrange(1, 200) for _ in range(chance.choice((0, 0, 1, 3)))]
        self._lead(self.layout, kind, at, robbed)

    def _lead(
        self, layout: Layout, kind: str, at: int, robbed: list[int], remedies: int = REMEDIES_MAX
    ) -> None:
        """Run the job, and judge; after a refusal, do what it says and run it again."""
        before, told = self.books.listing(), len(self.story)
        ending = self._live(layout, kind, at, robbed)
        self.books.learn()
        self.seen[f"ended: {type(ending).__name__ if ending else kind}"] += 1
        if isinstance(ending, Killed):
            self._tell(f"killed {ending}")
            self._after_commits(layout, before)
            self._expect(self.books.wrong(waits=True))
        elif ending is None:
            self._tell("ended well" + (", stopped" if kind == "stop" else ""))
            self._after_commits(layout, before)
            self._newest = None
            self._expect(self.books.wrong(waits=False))
        elif isinstance(ending, hf.RestoreError) and remedies:
            self._tell(f"refused: {ending}")
            changed = _changed(before, self.books.listing(), self.story[told:]) - self.books.robbed
            self._expect([f"the refusal has changed {name}" for name in sorted(changed)])
            self._obey(str(ending), remedies - 1)
            self._lead(layout, kind, at, robbed, remedies - 1)
        else:
            self._fail([f"ended with {ending!r}"])

    def _after_commits(self, layout: Layout, before: dict[str, int]) -> None:
        if any(name.startswith("ck/commits/") and name not in before for name in self.books.listing()):
            self.in_force = layout

    def _obey(self, refusal: str, remedies: int) -> None:
        """Do what the refusal says."""
        aside = re.search(r"set-aside (\S+) --", refusal)
        if "a newer copy of the checkpoint" in refusal:
            self._expect([] if self._newest else ["there is no newer copy"])
            assert self._newest is not None
            self.seen["remedy: newer copy"] += 1
            self._bring(self._newest, "the newer copy")
        elif aside and "no trace" not in refusal and self.chance.random() < 0.5:
            self._set_aside(aside[1])
        elif aside:
            self.seen["remedy: former job"] += 1
            self._tell("remedy: the former job is started once")
            self._lead(self.in_force, "end", 0, [], remedies)
        else:
            self._fail([f"a refusal without a remedy that is known here: {refusal}"])

    def _set_aside(self, uid: str) -> None:
        self.seen["remedy: put aside"] += 1
        place = self.books.root / "aside" / f"{len(self.story)}"
        storage = LocalStorage(self.books.checkpoint, fsync=False)
        done = set_aside(storage, uid, LocalStorage(place, fsync=False), SystemClock(), not_running=True)
        self._tell(f"remedy: {done.rows} rows of {uid} are put aside")
        newest = max(int(path.name) for path in (self.books.checkpoint / "commits").iterdir())
        self._unsettled_through = newest + SETTLED_COMMITS
        self._copies.clear()

    def _live(self, layout: Layout, kind: str, at: int, robbed: list[int]) -> BaseException | None:
        """One life of the job, to its end: well (None), refused, or Killed."""
        chance = self.chance
        size, interval = chance.choice((1, 3, 7, 20)), chance.choice((None, None, "1h"))
        retain = chance.choice((2, 4, 10))
        self._tell(
            f"run {layout} to {self.limit} by {size}, barriers {interval}, retain {retain}, {kind} {at}"
        )
        moments, wishes = Moments(random.Random(chance.random())), Wishes()
        for moment in robbed:
            moments.at(moment, lambda: self._tell(f"robbed of {self.books.consume(moments.chance)} files"))
        if kind != "end":
            moments.at(at, moments.die if kind == "kill" else wishes.stopping.set)
        with self._process(moments) as spark:
            handle = layout.declare(self.books.outputs, self.limit).start_as(
                wishes, f"file://{self.books.checkpoint}?fsync=off", spark, None, self._said,
                {
                    "until": "exhausted", "max_rows_per_epoch": size, "checkpoint_interval": interval,
                    "retain": retain, "restart": hf.NoRestart(), "parallelism": 1,
                    "working_dir": self.books.root / "working",
                },
            )  # fmt: skip
            try:
                handle.wait(DEADLINE_SECONDS)
            except (Exception, Killed) as ending:
                return Killed(str(ending)) if moments.dead else ending
            self._expect([] if not handle.running else ["the run does not end"])
            return None

    @contextmanager
    def _process(self, moments: Moments) -> Iterator[Any]:
        with pytest.MonkeyPatch.context() as patch, tightened():
            edge_kills.install(patch, moments)
            # Records that are retired have told what they had to tell.
            delete = LocalStorage.delete

            def learning(storage: LocalStorage, names: Any) -> None:
                if storage.root == self.books.checkpoint and edge_kills.in_driver():
                    self.books.learn()
                delete(storage, names)

            patch.setattr(LocalStorage, "delete", learning)
            yield tables_for_spark.install(patch)

    def _copy(self) -> None:
        if (self.books.checkpoint / "commits").exists():
            self._copies = [*self._copies, self._copied_now()][-COPIES_MAX:]
            self._tell(f"the checkpoint is copied at epoch {self._copies[-1].last_epoch}")

    def _copied_now(self) -> Copy:
        self._copied += 1
        to = self.books.root / "copies" / f"{self._copied}"
        shutil.copytree(self.books.checkpoint, to)
        return Copy(to, self.in_force, self.books.last_epoch())

    def _keep_newest(self) -> None:
        """Keep what is about to be lost, unless what was lost before is ahead of it."""
        now = self._copied_now()
        if self._newest is None or now.last_epoch >= self._newest.last_epoch:
            self._newest = now

    def _bring(self, copy: Copy, what: str) -> None:
        shutil.rmtree(self.books.checkpoint)
        shutil.copytree(copy.path, self.books.checkpoint)
        self.in_force = copy.in_force
        self.books.lose()
        self.seen[f"brought: {what}"] += 1
        self._tell(f"{what} is brought back, of epoch {copy.last_epoch}")

    def _said(self, text: str) -> None:
        if not text.startswith("this Spark session"):
            self._tell(f"  said: {text}")

    def _tell(self, what: str) -> None:
        self.story.append(what)

    def _expect(self, wrong: list[str]) -> None:
        if wrong:
            self._fail(wrong)

    def _fail(self, wrong: list[str]) -> None:
        lines = [f"seed {self.seed}", *self.story, *(f"WRONG: {each}" for each in wrong[:8])]
        raise Found("\n".join(lines))


def _changed(before: dict[str, int], after: dict[str, int], story: list[str]) -> set[str]:
    """What a refusal has changed. Going back past damage is a commit of its own, and rows that an earlier
    life has decided to show are shown."""
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    for name in sorted(changed):
        if found := re.fullmatch(r"(out/[^/]+)/_holdfast/([^/]+)/(\d{12})-.+", name):
            changed -= {name, f"{found[1]}/{found[2]}-{found[3]}.parquet"}
    if any(REWIND in line for line in story):
        changed = {name for name in changed if not name.startswith(("ck/commits/", "ck/manifests/"))}
    return changed
