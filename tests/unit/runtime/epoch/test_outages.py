"""Servers that are not there: waits that grow, are shown, and end with the server or with a stop."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.connectors.contract import Slice
from holdfast.connectors.memory import MemoryReader, MemorySource
from holdfast.errors import Unavailable
from holdfast.runtime.epoch.outages import FIRST_SECONDS, JITTER, MOST_SECONDS, Outages
from holdfast.runtime.epoch.planner import Planner
from holdfast.runtime.epoch.source_health import SourceHealth
from holdfast.runtime.leader_context import LeaderContext, ToldToStop
from holdfast.storage.local_directory import LocalStorage
from holdfast.testing.clocks import ManualClock
from tests.unit.runtime.leader_kit import SHAPE, leader_of, no_tables


class PassingClock(ManualClock):
    """Time passes while one waits; `then` is called each time."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.then, self.slept = then, 0.0

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.slept += seconds
        self.then()


def leader(clock: ManualClock, chance: float = 0.5, **more: Any) -> LeaderContext:
    return dataclasses.replace(leader_of(None, clock=clock, **more), chance=lambda: chance)


def waits(outages: Outages, clock: PassingClock, tries: int) -> list[float]:
    found = []
    for _ in range(tries):
        outages.failed("out", Unavailable("nobody listens"))
        clock.slept = 0.0
        assert outages.wait("out", lambda: False)
        found.append(round(clock.slept, 2))
    return found


def test_waits_grow_up_to_a_limit_and_begin_again_after_an_answer() -> None:
    clock = PassingClock()
    outages = Outages(leader(clock), "sink")
    found = waits(outages, clock, 9)
    assert found == pytest.approx([0.5, 1, 2, 4, 8, 16, 30, 30, 30], abs=0.06)
    outages.answered("out")
    assert waits(outages, clock, 1) == pytest.approx([FIRST_SECONDS], abs=0.06)


@pytest.mark.parametrize("chance", [0.0, 1.0])
def test_chance_decides_a_part_of_each_wait(chance: float) -> None:
    clock = PassingClock()
    found = waits(Outages(leader(clock, chance), "sink"), clock, 9)[-1]
    assert found == pytest.approx(MOST_SECONDS * (1 + JITTER * (2 * chance - 1)), abs=0.06)


def test_an_outage_is_said_when_it_begins_and_when_it_is_over_and_shown_in_between() -> None:
    clock, said = PassingClock(), list[str]()
    outages, changes = Outages(leader(clock, say=said.append), "sink"), list[Any]()
    outages.on_change = lambda: changes.append(outages.told("out"))
    began = clock.now_ms()
    waits(outages, clock, 3)
    assert [text.split(";")[0] for text in said] == ["WAITING for the server of sink 'out': nobody listens"]
    told = outages.told("out")
    assert told is not None
    assert (told["since_ms"], told["tries"], told["reason"]) == (began, 3, "nobody listens")
    assert told["next_try_ms"] <= clock.now_ms()
    outages.answered("out")
    outages.answered("out")
    assert (said[1:], outages.told("out")) == (["the server of sink 'out' is there again, after 4 s"], None)
    assert len(changes) == 4


def test_who_is_told_that_it_is_over_waits_no_longer() -> None:
    clock = PassingClock()
    outages = Outages(leader(clock), "sink")
    outages.failed("out", Unavailable("nobody listens"))
    assert not outages.wait("out", lambda: clock.slept > 0.1)
    assert clock.slept < 0.2


def test_what_is_awaited_comes_with_the_server_or_ends_with_a_stop() -> None:
    clock = PassingClock()
    context = leader(clock)
    outages, tries = Outages(context, "source"), list[int]()

    def ask() -> int:
        tries.append(1)
        if len(tries) % 3:
            raise Unavailable("nobody listens")
        return len(tries)

    assert outages.awaited("in", ask) == 3
    assert outages.told("in") is None
    clock.then = context.wishes.stopping.set
    with pytest.raises(ToldToStop, match="source 'in': nobody listens"):
        outages.awaited("in", ask)


class Flaky(MemorySource):
    """A source whose server is not there, as `away` says."""

    def __init__(self, rows: list[int]) -> None:
        super().__init__(rows)
        self.away, self.asked = False, 0

    def reader(self, notes: Any) -> MemoryReader:
        self.reach()
        source = self

        class Reader(MemoryReader):
            def next(self, after: Any, max_rows: int | None, now_ms: int) -> Slice | None:
                source.reach()
                return super().next(after, max_rows, now_ms)

        made = super().reader(notes)
        made.__class__ = Reader
        return made

    def reach(self) -> None:
        self.asked += 1
        if self.away:
            raise Unavailable("nobody listens")


class Planning:
    def __init__(self, root: Path, clock: ManualClock, **sources: MemorySource) -> None:
        made = leader_of(LocalStorage(root), sources=sources, clock=clock)
        self.context = dataclasses.replace(made, chance=lambda: 0.5)
        view = self.context.checkpoint.chain.load()
        shape = dataclasses.replace(SHAPE, sources=tuple(sources))
        self.planner = Planner(self.context, view, shape, deque(), no_tables())
        nodes = self.context.program.graph.sources
        self.health = SourceHealth(nodes, self.context.monitor, 0, self.planner.outages)

    def read(self) -> set[str]:
        plan = self.planner.next(10, 0)
        self.health.look(self.planner.readers, 0)
        return set(plan.slices) if plan is not None else set()


def test_a_source_that_is_away_holds_up_no_other_and_is_read_when_it_is_back(tmp_path: Path) -> None:
    clock, flaky = PassingClock(), Flaky(list(range(10)))
    job = Planning(tmp_path, clock, flaky=flaky, steady=MemorySource(list(range(30))))
    flaky.away = True
    assert [job.read() for _ in range(2)] == [{"steady"}, {"steady"}]
    assert job.context.monitor.progress.sources["flaky"]["unavailable"]["reason"] == "nobody listens"
    flaky.away = False
    asked = flaky.asked
    assert job.read() == {"steady"}
    assert flaky.asked == asked, "it is not tried before its time"
    clock.sleep(60)
    assert job.read() == {"flaky"}
    assert "flaky" not in job.context.monitor.progress.sources


def test_a_source_that_is_away_has_not_come_to_its_end(tmp_path: Path) -> None:
    clock, flaky = PassingClock(), Flaky(list(range(3)))
    job = Planning(tmp_path, clock, flaky=flaky)
    assert job.read() == {"flaky"}
    flaky.away = True
    assert job.read() == set()
    assert (job.planner.waits, job.planner.exhausted()) == (True, False)
    flaky.away = False
    clock.sleep(60)
    assert job.read() == set()
    assert (job.planner.waits, job.planner.exhausted()) == (False, True)


def test_a_source_that_is_away_at_the_start_is_waited_for(tmp_path: Path) -> None:
    flaky = Flaky(list(range(3)))
    flaky.away = True
    tried = list[int]()

    def back() -> None:
        tried.append(1)
        flaky.away = len(tried) < 30

    job = Planning(tmp_path, PassingClock(back), flaky=flaky)
    assert flaky.asked > 1
    assert job.read() == {"flaky"}
