"""A part whose state is in no file, through crashes, rewinds and new sinks: every sink shows the windows that
a run without any of it would show, and the input keeps what is needed for that, and no more in the end.

The chain, its retention, the low-water position and the way back are the real ones; windows are counted here.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from msgspec.structs import replace as changed

from holdfast.checkpoint.chain import commits, low_water
from holdfast.checkpoint.chain.commits import Chain, Committed
from holdfast.checkpoint.chain.retention import Retention
from holdfast.checkpoint.chain.view import CheckpointView, news
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.records import (
    Extent,
    OperatorSchema,
    PlannedWatermark,
    PlanRecord,
    StagedFile,
)
from holdfast.errors import RestoreError
from holdfast.ids import CommitNumber
from holdfast.runtime.epoch.low_water import LowWater
from holdfast.runtime.epoch.runner import EpochRunner
from holdfast.runtime.upstream import gone_back
from tests.unit.checkpoint.kept import MemoryStorage, draft

SIZE, DELAY, RETAIN = 7, 3, 3
SCHEMA = OperatorSchema(uid="op", key=(), states=())
Windows = Counter[int]
"""The end of a window -> how many rows it has."""


class Violation(AssertionError):
    """What a sink shows, or what the input has let go of, is wrong."""


def end_of(at: int) -> int:
    return (at // SIZE + 1) * SIZE


@dataclass
class Part:
    """The part, its input and its sinks."""

    chance: random.Random
    storage: MemoryStorage = field(default_factory=MemoryStorage)
    rows: dict[int, list[int]] = field(default_factory=dict)
    """Epoch -> the times of its rows: its plan, which is followed whenever the epoch runs again."""
    released: int = 0
    sinks: tuple[str, ...] = ("first",)
    joined_after: dict[str, int] = field(default_factory=dict)
    shown: dict[str, dict[int, Windows]] = field(default_factory=lambda: {"first": {}})
    files: dict[str, Windows] = field(default_factory=dict)
    newest: int = 0

    def start(self) -> None:
        self.chain = Chain(self.storage, retain=RETAIN, manifest_every=5)
        self.retention = Retention(self.chain, sweep_every=2)
        graph = SimpleNamespace(operators=[SimpleNamespace(uid="op")])
        context: Any = SimpleNamespace(
            checkpoint=SimpleNamespace(chain=self.chain), program=SimpleNamespace(graph=graph), term=1,
            run="run-1", monitor=SimpleNamespace(say=lambda text: None),
        )  # fmt: skip
        view = self.chain.load()
        if not view.number:
            record = news(view, term=1, run="run-1", published_through={})
            view = self._committed(view, changed(record, needs_from=1, operators=(SCHEMA,)))
        self.view = self.loaded = gone_back(context, view)
        begins = max(self.view.last_epoch, self.view.whole_after)
        for sink in self.sinks:
            self.joined_after.setdefault(sink, begins if len(self.sinks) > 1 else 0)
        known = self.view.published_through
        self.through = {sink: known.get(sink, begins) for sink in self.sinks}
        self.open: Windows = Counter()
        self.water = LowWater("op", self.view.last_epoch)
        self._show()

    def commit(self, epochs: int) -> None:
        """Run some epochs, those of before again as they were, and commit them as one."""
        first, staged = self.view.last_epoch + 1, list[StagedFile]()
        needs_from = 0
        for epoch in range(first, first + epochs):
            rows = self._planned(epoch)
            closed, expires = self._ran(epoch, rows)
            plan = _plan(epoch, self._watermark(epoch))
            needs_from = self.water.ran(plan, expires)
            staged += self._staged(epoch, closed)
        record = changed(
            draft(self.view, epochs=epochs, deltas=()), staged=tuple(staged), needs_from=needs_from,
            published_through=dict(self.through), operators=(SCHEMA,),
        )  # fmt: skip
        through = self.view.settled.through
        settled = {sink: max(record.last_epoch, through.get(sink, 0)) for sink in self.sinks}
        self.view = self._committed(self.view, changed(record, staged_through=settled))
        self._release()
        if self.chance.random() < 0.7:
            self._show()

    def rewind(self) -> None:
        """A user goes back to some commit that can be gone back to; the job starts from there."""
        to = self.chance.randint(self.view.retained_from, self.view.number)
        target = self.chain.view_at(to)
        if low_water.lacks_state(target):
            try:
                low_water.refuse_without_base(self.chain, target, self.view.number, self.view.retained_from)
            except RestoreError:
                return
        self.chain.rewind(self.view.head, CommitNumber(to), term=1, run="run-1")
        self.start()

    def join(self) -> None:
        if len(self.sinks) == 1:
            self.sinks, self.shown["second"] = ("first", "second"), {}
        self.start()

    def check(self) -> None:
        """Each sink shows what a run shows that nothing ever happened to."""
        expected, open_now = {}, Counter[int]()
        for epoch in sorted(self.rows):
            before, now = self._watermark(epoch - 1), self._watermark(epoch)
            open_now.update(end_of(at) for at in self.rows[epoch] if end_of(at) > before)
            expected[epoch] = Counter({end: n for end, n in open_now.items() if end <= now})
            open_now = Counter({end: n for end, n in open_now.items() if end > now})
        for sink, epochs in self.shown.items():
            for epoch, found in epochs.items():
                if found != expected[epoch]:
                    raise Violation(f"{sink} shows {found} of epoch {epoch}, not {expected[epoch]}")

    def _planned(self, epoch: int) -> list[int]:
        if epoch not in self.rows:
            self.rows[epoch] = [
                max(0, self.newest + self.chance.randint(-DELAY, 3)) for _ in range(self.chance.randint(0, 4))
            ]
            self.newest = max([self.newest, *self.rows[epoch]])
        elif epoch <= self.released:
            raise Violation(f"epoch {epoch} is read again, and the input has let go of it")
        return self.rows[epoch]

    def _watermark(self, epoch: int) -> int:
        read = [at for each, rows in self.rows.items() if each < epoch for at in rows]
        return max(read, default=0) - DELAY

    def _ran(self, epoch: int, rows: list[int]) -> tuple[Windows, int | None]:
        before, now = self._watermark(epoch - 1), self._watermark(epoch)
        ends = [end_of(at) for at in rows if end_of(at) > before]
        self.open.update(ends)
        closed = Counter({end: n for end, n in self.open.items() if end <= now})
        self.open = Counter({end: n for end, n in self.open.items() if end > now})
        return closed, max(ends, default=None)

    def _staged(self, epoch: int, closed: Windows) -> list[StagedFile]:
        runner: Any = SimpleNamespace(
            program=SimpleNamespace(sinks_of=lambda stream: self.sinks), settled=self.loaded.settled,
            shown_through=dict(self.through), whole_after=self.loaded.whole_after,
        )  # fmt: skip
        sinks = EpochRunner._sinks_of(runner, "stream", epoch)
        if not sinks:
            return []
        name = f"{names.data_of(epoch)}{len(self.files)}"
        self.files[name] = closed
        self.storage.put(name, b"x")
        extent = Extent(object=name, offset=0, length=1, checksum="")
        return [StagedFile(stream="stream", epoch=epoch, part=0, extent=extent, rows=1, sinks=sinks)]

    def _committed(self, view: CheckpointView, record: Any) -> CheckpointView:
        done = self.chain.commit(view, record)
        assert isinstance(done, Committed)
        self.retention.after_commit(done.view)
        return done.view

    def _release(self) -> None:
        """As the sender does: what no commit could read again that the reader may go back to."""
        kept = range(self.view.given_up_below, self.view.number + 1)
        self.released = max(self.released, min(self.chain.view_at(each).last_epoch for each in kept))

    def _show(self) -> None:
        for sink in self.sinks:
            last = max(self.view.last_epoch, self.view.settled.ready_through(sink))
            for epoch in range(self.through[sink] + 1, last + 1):
                found = [f for f in self.view.staged if f.epoch == epoch and sink in f.sinks]
                # A sink that joined has nothing of the epochs of older commits, when one of them holds again.
                if len(found) != 1 and (found or sink == "first"):
                    raise Violation(f"{len(found)} files wait for {sink} of epoch {epoch}")
                for file in found:
                    self.shown[sink][epoch] = self.files[file.extent.object]
                self.through = {**self.through, sink: epoch}


def _plan(epoch: int, now: int) -> PlanRecord:
    return PlanRecord(
        epoch=epoch, attempt=1, term=1, run="r", parent=0, fingerprint="f", parallelism=1, clock_ms=0,
        slices={}, watermarks={"op": PlannedWatermark(now_us=now)},
    )  # fmt: skip


def play(seed: int) -> Part:
    chance = random.Random(seed)
    part = Part(chance)
    part.start()
    for _ in range(40):
        act = chance.choice(["commit"] * 7 + ["crash"] * 2 + ["rewind", "join"])
        if act == "commit":
            part.commit(chance.randint(1, 3))
        elif act == "crash":
            part.start()
        elif act == "rewind":
            part.rewind()
        else:
            part.join()
        part.check()
    return part


def test_every_sink_shows_the_windows_of_a_run_without_failures() -> None:
    parts = [play(seed) for seed in range(60)]
    assert sum(len(part.shown["first"]) for part in parts) > 600
    assert any(len(part.sinks) > 1 and part.shown["second"] for part in parts)
    # What is needed no more is let go.
    assert sum(part.released for part in parts) > sum(max(part.rows) for part in parts) // 3


def _too_high(self: LowWater, plan: PlanRecord, expires_us: int | None) -> int:
    return min(_ran(self, plan, expires_us) + 1, plan.epoch + 1)


def _let_go_early(history: Any, view: CheckpointView, oldest: int) -> int:
    return max(oldest, 1)


def _at_once(context: Any, view: CheckpointView) -> CheckpointView:
    return replace(_gone_back(context, view), whole_after=0)


_ran, _gone_back = LowWater.ran, gone_back
HERE = f"{__name__}."
CONTROLS: dict[str, tuple[Callable[..., Any], str, str]] = {
    "the low-water position is one epoch too high": (_too_high, f"{HERE}LowWater.ran", "shows"),
    "commits are not kept for it": (_let_go_early, f"{commits.__name__}.keep_for", "let go"),
    "what is in the making is given out": (_at_once, f"{HERE}gone_back", "second"),
}  # fmt: skip


@pytest.mark.parametrize("control", CONTROLS)
def test_a_missing_safeguard_is_found_out(control: str) -> None:
    instead, where, finds = CONTROLS[control]
    with patch(where, instead):
        found = next(filter(None, map(_violation, range(500))), "nothing")
    assert finds in found


def _violation(seed: int) -> str:
    try:
        play(seed)
    except (Violation, RestoreError) as found:
        return str(found)
    return ""
