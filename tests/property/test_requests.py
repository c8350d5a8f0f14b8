"""Whatever leaders, askers and storage do to one another: a request is carried out at most once, and its
answer does not lie.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from datetime import timedelta
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.checkpoint.log.requests import EXPIRES_MS, KEPT_MS, State, ask, read_asked, take_back
from holdfast.errors import HoldfastError, RestoreError, RetryableError
from holdfast.runtime.control.request_server import Control
from holdfast.storage.contract import Put
from holdfast.testing.clocks import ManualClock
from holdfast.testing.faulty_storage import Fault, FaultKind, FaultyStorage
from tests.unit.checkpoint.kept import MemoryStorage
from tests.unit.runtime.control.control_kit import FakeJob

NOW = 1_760_000_000_000
FAULTS = [FaultKind.FAIL, FaultKind.LOSE_REQUEST, FaultKind.LOSE_ANSWER]


class World:
    """Some leaders of one job, none of which knows that there are others, and some askers."""

    def __init__(self, draw: st.DataObject) -> None:
        self.draw = draw
        self.clock = ManualClock(NOW)
        self.kept = Interrupted(self)
        self.storage = FaultyStorage(self.kept)
        self.done: Counter[int] = Counter()
        self.leaders: list[Control] = []
        self.looking: Control | None = None
        self.terms = 0
        self.ids: dict[str, int] = {}
        """Request -> the number of shards it asks for: another one each time."""
        self.ends: dict[str, State] = {}
        self.busy = False

    def lead(self) -> None:
        self.terms += 1
        job = FakeJob()
        job.calls = Counting(self.done)
        self.leaders.append(Control(self.storage, self.terms, job, self.clock, lambda text: None))

    def die(self) -> None:
        if self.leaders:
            self.leaders.pop(self.draw.draw(st.integers(0, len(self.leaders) - 1)))

    def look(self) -> None:
        # A leader has one thread: it does not interrupt itself.
        free = [leader for leader in self.leaders if leader is not self.looking]
        if free:
            leader = self.draw.draw(st.sampled_from(free))
            before, self.looking = self.looking, leader
            with contextlib.suppress(RetryableError):
                leader.look()
            self.looking = before

    def ask(self) -> None:
        shards = len(self.ids) + 1
        token, now_ms = f"{shards:08x}", self.clock.now_ms()
        try:
            ask(self.kept, "rescale", {"parallelism": shards}, token=token, asked_by="a", now_ms=now_ms)
        finally:
            self.ids[f"{now_ms}-{token}"] = shards

    def take_back(self) -> None:
        if self.ids:
            id = self.draw.draw(st.sampled_from(sorted(self.ids)))
            with contextlib.suppress(HoldfastError):
                take_back(self.storage, id, self.clock.now_ms(), "changed my mind")

    def fault(self) -> None:
        kind = self.draw.draw(st.sampled_from(FAULTS))
        operation = self.draw.draw(st.sampled_from(["put_new", "get", "list", "delete"]))
        self.storage.add(Fault(kind=kind, operation=operation, times=self.draw.draw(st.integers(1, 3))))

    def time(self) -> None:
        seconds = self.draw.draw(st.sampled_from([1, 61, EXPIRES_MS // 1_000 + 1, KEPT_MS // 1_000 + 1]))
        self.clock.advance(timedelta(seconds=seconds))

    def check(self) -> None:
        assert not [shards for shards, count in self.done.items() if count > 1], "carried out twice"
        for id, shards in self.ids.items():
            try:
                state = read_asked(self.kept, id).state
            except RestoreError:
                continue  # swept
            before = self.ends.get(id)
            assert before in (None, state), f"{id} was answered {before}, and now it is {state}"
            if state.ended:
                self.ends[id] = state
            if state is State.DONE:
                assert self.done[shards] == 1, f"{id} is not done"
            if state is State.REFUSED:
                assert self.done[shards] == 0, f"{id} was refused and carried out"


class Counting(list[tuple[object, ...]]):
    """Counts what a job was told."""

    def __init__(self, done: Counter[int]) -> None:
        super().__init__()
        self._done = done

    def append(self, call: tuple[object, ...]) -> None:
        self._done[int(str(call[1]))] += 1


class Interrupted(MemoryStorage):
    """Storage in which another leader, or an asker, may act just before a call takes effect."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def put_new(self, name: str, data: bytes) -> Put:
        self._interrupt()
        return super().put_new(name, data)

    def get(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        self._interrupt()
        return super().get(name, offset, length)

    def _interrupt(self) -> None:
        world = self._world
        if not world.busy and world.leaders and world.draw.draw(st.booleans()):
            world.busy = True
            try:
                world.draw.draw(st.sampled_from([world.look, world.take_back]))()
            finally:
                world.busy = False


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_request_is_carried_out_at_most_once_and_its_answer_is_true(draw: st.DataObject) -> None:
    # Nobody sees newer leaders: safety rests on the claims alone.
    with mock.patch("holdfast.runtime.control.request_server.is_superseded", return_value=False):
        world = World(draw)
        world.lead()
        moves = [world.ask, world.look, world.look, world.lead, world.die, world.take_back]
        moves += [world.fault, world.time]
        for _ in range(draw.draw(st.integers(5, 20))):
            draw.draw(st.sampled_from(moves))()
            world.busy = True  # Checking is nobody's move.
            world.check()
            world.busy = False


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_once_storage_is_well_every_request_is_answered(draw: st.DataObject) -> None:
    with mock.patch("holdfast.runtime.control.request_server.is_superseded", return_value=False):
        world = World(draw)
        moves = [world.ask, world.look, world.lead, world.die, world.fault]
        for _ in range(draw.draw(st.integers(5, 20))):
            draw.draw(st.sampled_from(moves))()
        world.busy = True
        world.storage.heal()
        world.lead()
        for _ in range(3):
            world.leaders[-1].look()
        assert {read_asked(world.kept, id).state.ended for id in world.ids} <= {True}
        world.check()
