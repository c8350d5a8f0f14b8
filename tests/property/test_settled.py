"""Whatever goes back or is damaged, each sink shows of every epoch what the first commit of it has named."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as changed

from holdfast.checkpoint.chain import commits, history, settled
from holdfast.checkpoint.chain.checkpoint import Checkpoint
from holdfast.checkpoint.chain.commits import Chain
from holdfast.checkpoint.chain.history import brings_manifest
from holdfast.checkpoint.chain.plans import Plans
from holdfast.checkpoint.chain.retention import Retention
from holdfast.checkpoint.chain.settled import Settled
from holdfast.checkpoint.chain.view import CheckpointView, Head, rewound
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.records import Extent, JobRecord, StagedFile
from holdfast.ids import CommitNumber
from holdfast.runtime.epoch.runner import EpochRunner
from holdfast.runtime.recovery import Recovery
from holdfast.storage.checksums import checksum
from tests.unit.checkpoint.kept import MemoryStorage, commit, draft

JOB = JobRecord(job="sums", identity="id", key_groups=4, created_ms=0, written_by="test")
SINKS = ("a", "b", "later")
BYTES = b"rows"


class Act(NamedTuple):
    kind: str
    number: int
    more: int


KINDS = ["commit"] * 5 + ["show"] * 3 + ["rewind"] * 2 + ["damage", "restart", "join", "manifest"]
ACTS = st.lists(st.builds(Act, st.sampled_from(KINDS), st.integers(0, 9), st.integers(0, 9)), max_size=50)


class Story:
    """A checkpoint, its sinks, and what each has shown; `check` holds after every act."""

    def __init__(self) -> None:
        self.storage = MemoryStorage()
        self.sinks: tuple[str, ...] = SINKS[:2]
        self.first: dict[tuple[str, int], str] = {}
        self.shown: dict[str, dict[int, str]] = {sink: {} for sink in SINKS}
        self.through: dict[str, int] = {}
        self.files = 0
        self.restart()

    def restart(self) -> None:
        self.chain = Chain(self.storage, retain=4, manifest_every=5)
        self.retention = Retention(self.chain, sweep_every=2)
        self.led(self.chain.load())

    def led(self, view: CheckpointView) -> None:
        """Lead from here on, as a run does that loads this view."""
        self.view = self.loaded = view
        begins = view.last_epoch
        self.through = {sink: max(view.published_through.get(sink, begins), max(self.shown[sink], default=0))
                        for sink in self.sinks}  # fmt: skip

    def act(self, act: Act) -> None:
        match act.kind:
            case "commit":
                self.commit(1 + act.number % 3)
            case "show":
                self.show(self.sinks[act.number % len(self.sinks)], 1 + act.more % 3)
            case "rewind" if self.view.number:
                span = self.view.number - self.view.retained_from + 1
                to = self.view.retained_from + act.number % span
                if not rewound(self.view.head, self.chain.view_at(to)).settled.waits_for(
                    self.chain.view_at(to).last_epoch
                ):
                    done = self.chain.rewind(self.view.head, CommitNumber(to), term=1, run="run-1")
                    self.led(done.view)
            case "damage" if self.view.staged:
                self.damage(self.view.staged[act.number % len(self.view.staged)])
            case "restart":
                self.restart()
            case "join":
                self.sinks = SINKS
                self.restart()
            case "manifest" if self.view.number:
                self.lose_manifest()
            case _:
                pass

    def commit(self, epochs: int) -> None:
        runner: Any = SimpleNamespace(
            program=SimpleNamespace(sinks_of=lambda stream: self.sinks), settled=self.loaded.settled,
            shown_through=self.through, whole_after=0,
        )  # fmt: skip
        record = draft(self.view, epochs=epochs)
        staged = []
        for epoch in range(record.first_epoch, record.last_epoch + 1):
            for sink in EpochRunner._sinks_of(runner, "stream", epoch):
                staged.append(self.staged(epoch, sink))
                self.first.setdefault((sink, epoch), staged[-1].extent.object)
        record = changed(
            record, deltas=(), staged=tuple(staged), published_through=dict(self.through)
        )  # fmt: skip
        held = {file.extent.object: self.storage.objects[file.extent.object] for file in staged}
        self.view = commit(self.chain, self.view, record)
        self.storage.objects.update(held)
        self.retention.after_commit(self.view)

    def staged(self, epoch: int, sink: str) -> StagedFile:
        self.files += 1
        name = f"{names.data_of(epoch)}{sink}-{self.files}"
        self.storage.put(name, BYTES)
        extent = Extent(object=name, offset=0, length=len(BYTES), checksum=checksum(BYTES))
        return StagedFile(stream="stream", epoch=epoch, part=0, extent=extent, rows=1, sinks=(sink,))

    def show(self, sink: str, epochs: int) -> None:
        last = max(self.view.last_epoch, self.view.settled.ready_through(sink))
        for epoch in range(self.through[sink] + 1, min(last, self.through[sink] + epochs) + 1):
            files = [f for f in self.view.staged if f.epoch == epoch and sink in f.sinks]
            if (sink, epoch) in self.first:
                (file,) = files
                assert self.storage.get(file.extent.object) == BYTES
                self.shown[sink][epoch] = file.extent.object
            self.through = {**self.through, sink: epoch}

    def damage(self, file: StagedFile) -> None:
        """Rows that wait are damaged, and the run recovers from it."""
        self.storage.flip(file.extent.object)
        checkpoint = Checkpoint(self.storage, JOB, self.chain, Plans(self.storage), self.retention)
        recovery = Recovery(checkpoint, 1, "run-1", lambda text: None)
        known = [self.chain.view_at(n) for n in range(self.view.retained_from, self.view.number + 1)]
        waits = any(self.through.get(sink, 0) < file.epoch for sink in file.sinks)
        if not waits or min(each.last_epoch for each in known) >= file.epoch:
            self.storage.put(file.extent.object, BYTES)
            return
        self.led(recovery.past_damage(self.view))
        for sink in file.sinks:
            if self.through.get(sink, 0) < file.epoch:
                del self.first[sink, file.epoch]

    def lose_manifest(self) -> None:
        record = self.chain.record(self.view.number)
        if brings_manifest(record) and record.rewind_to is not None:
            held = self.storage.objects.pop(record.manifest)
            without = Chain(self.storage).load()
            assert (without.settled, without.staged) == (self.view.settled, self.view.staged)
            self.storage.put(record.manifest, held)

    def check(self) -> None:
        for sink, epochs in self.shown.items():
            assert list(epochs) == sorted(epochs)
            for epoch, shown in epochs.items():
                assert self.first[sink, epoch] == shown, f"{sink} shows another epoch {epoch} than first"
        for sink in self.sinks:
            last = self.view.settled.through.get(sink, 0)
            for epoch in range(self.through[sink] + 1, last + 1):
                files = [f for f in self.view.staged if f.epoch == epoch and sink in f.sinks]
                first = self.first.get((sink, epoch))
                # A sink that joined has nothing of the epochs of older commits, when one of them holds again.
                assert first or epoch in self.view.settled.lost.get(sink, ()) or sink == "later"
                assert [f.extent.object for f in files] == ([first] if first else [])
                assert all(self.storage.objects.get(f.extent.object) == BYTES for f in files)
        order = [file.epoch for file in self.view.staged]
        assert order == sorted(order)


def play(acts: list[Act]) -> Story:
    story = Story()
    for act in acts:
        story.act(act)
        story.check()
    return story


@settings(max_examples=300, deadline=None)
@given(ACTS)
def test_a_sink_shows_what_was_committed_first_whatever_goes_back(acts: list[Act]) -> None:
    story = play(acts)
    # In the end everything is computed again that has to be, and shown.
    target = max([story.view.last_epoch, *story.view.settled.through.values()])
    while story.view.last_epoch < target:
        story.commit(1)
    for sink in story.sinks:
        story.show(sink, 1_000)
        story.check()
        assert story.through[sink] >= target


def found_out() -> bool:
    """Whether some story makes the check fail."""
    for seed in range(300):
        chance = random.Random(seed)
        acts = [Act(chance.choice(KINDS), chance.randrange(10), chance.randrange(10)) for _ in range(40)]
        try:
            play(acts)
        except (AssertionError, ValueError, KeyError):
            return True
    return False


def test_a_rewind_that_drops_what_was_committed_is_found_out() -> None:
    def forgetful(head: Head, to: CheckpointView, *given: Any) -> CheckpointView:
        return rewound(Head(*_but_output(head)), to, *given)

    with patch.object(commits, "rewound", forgetful), patch.object(history, "rewound", forgetful):
        assert found_out()


def _but_output(head: Head) -> tuple[Any, ...]:
    return (
        head.number, head.checksum, head.term, head.run, head.clock_ms, head.retained_from,
        head.published_through, head.rows_through, head.channels, head.barriers,
    )  # fmt: skip


def test_staging_again_what_is_settled_is_found_out() -> None:
    with patch.object(EpochRunner, "_sinks_of", lambda self, stream, epoch: self.program.sinks_of(stream)):
        assert found_out()


def test_replacing_more_than_is_damaged_is_found_out() -> None:
    def all_after(self: Settled, damaged: Any, published: Any) -> Settled:
        first = min((file.epoch for file in damaged), default=None)
        if first is None:
            return self
        lost = {sink: tuple(range(first, last + 1)) for sink, last in self.through.items()}
        return Settled(self.through, lost)

    with patch.object(settled.Settled, "without", all_after):
        assert found_out()
