"""Two leaders at once, paused and killed anywhere between storage calls, over storage whose answers get lost.

One seed replays a whole run. Each negative control takes one safeguard away and must be found out.
"""

from __future__ import annotations

import os
from dataclasses import replace

import msgspec
import pytest

from holdfast.checkpoint import commits, names, once
from holdfast.checkpoint import view as view_module
from holdfast.checkpoint.commits import Adopted, Chain, Committed
from holdfast.checkpoint.envelope import seal
from holdfast.checkpoint.records import CommitRecord, Parent
from holdfast.checkpoint.retention import Retention, Retired
from holdfast.checkpoint.view import EMPTY, CheckpointView
from holdfast.errors import FencedOut, UnknownOutcome
from holdfast.storage.contract import Put, Storage
from tests.sim.leaders import Doubles, Leader
from tests.sim.scheduler import Scheduler
from tests.sim.world import SimStorage, Violation, World

SEEDS = int(os.environ.get("HOLDFAST_SIM_SEEDS", "300"))
SEEDS_TO_FIND_MAX = 2_000


def simulate(seed: int, doubles: Doubles) -> World:
    scheduler = Scheduler(seed)
    world = World(scheduler)
    scheduler.run({name: Leader(world, name, doubles) for name in ("a", "b")})
    return world


def seed_that_finds(doubles: Doubles) -> tuple[int, str]:
    for seed in range(SEEDS_TO_FIND_MAX):
        try:
            simulate(seed, doubles)
        except Violation as found:
            return seed, str(found)
    raise AssertionError(f"no violation in {SEEDS_TO_FIND_MAX} seeds")


def after_the_storm(world: World) -> CheckpointView:
    """What a new leader reads once everything has landed and nothing fails."""
    for _, name, data in world.late:
        world.create(name, data)
    quiet = World(Scheduler(0, pause_chance=0, crash_chance=0), fault_chance=0, objects=world.objects)
    loaded: list[CheckpointView] = []
    quiet.scheduler.run({"reader": lambda: loaded.append(Chain(SimStorage(quiet)).load())})
    return loaded[0]


@pytest.mark.parametrize(
    "doubles",
    [Doubles(), Doubles(rewinds=True), Doubles(rewinds=True, retain=1, manifest_every=1)],
    ids=["forward", "rewinding", "retiring at once"],
)
def test_two_leaders_build_one_chain(doubles: Doubles) -> None:
    commits_made = fenced_runs = 0
    for seed in range(SEEDS):
        world = simulate(seed, doubles)
        world.check_retained()
        view = after_the_storm(world)
        assert view == world.views[len(world.chain)], f"seed {seed}"
        commits_made += len(world.chain)
        fenced_runs += len({record.run for record, _ in world.chain}) > 1
    assert commits_made > 5 * SEEDS
    assert fenced_runs > SEEDS / 2, "the simulation hardly ever lets two leaders meet"


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = simulate(7, Doubles()), simulate(7, Doubles())
    assert first.objects == second.objects
    assert first.shown == second.shown


def test_an_answer_never_read_back_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def take_it_for_ours(storage: Storage, name: str, data: bytes) -> bytes:
        storage.put_new(name, data)
        return data

    monkeypatch.setattr(commits, "write_once", take_it_for_ours)
    seed_that_finds(Doubles())


def test_an_unknown_outcome_taken_for_success_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def hope(storage: Storage, name: str, data: bytes) -> bytes:
        try:
            return data if storage.put_new(name, data) is Put.CREATED else storage.get(name)
        except UnknownOutcome:
            return data

    monkeypatch.setattr(commits, "write_once", hope)
    seed_that_finds(Doubles())


def test_a_commit_that_does_not_look_at_the_floor_is_found_out() -> None:
    class Blind(Chain):
        def _overtaken(self, number: int) -> bool:
            return False

    seed_that_finds(Doubles(chain=Blind, retain=1, manifest_every=2))


def test_deleting_commits_without_raising_the_floor_is_found_out() -> None:
    class Floorless(Retention):
        def _raise_floor(self, oldest: CheckpointView, head: CheckpointView, floor: int) -> int:
            return max(floor, (names.number_of(oldest.manifest) or 0) - 1)

    seed_that_finds(Doubles(retention=Floorless))


def test_deleting_what_no_record_has_given_up_is_found_out() -> None:
    class Hasty(Retention):
        def after_commit(self, head: CheckpointView) -> Retired | None:
            return super().after_commit(replace(head, given_up_below=head.retained_from + 1))

    _, found = seed_that_finds(Doubles(retention=Hasty))
    assert "is gone" in found


def test_building_on_a_higher_term_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "_refuse_if_superseded", lambda head, term, run: None)
    monkeypatch.setattr(view_module, "_refuse_unless_next", lambda view, record: None)
    _, found = seed_that_finds(Doubles())
    assert "follows one of term" in found


def test_fencing_the_rightful_leader_for_a_retired_number_is_found_out() -> None:
    class Strict(Chain):
        def _give_way(self, term: int, run: str) -> Adopted:
            raise FencedOut(term, self.load().term, "another record has the number")

    _, found = seed_that_finds(Doubles(chain=Strict))
    assert "no other leader has reached it" in found


class NumberedByEpoch(Chain):
    """Names a commit by its last epoch. Two leaders that cut barriers elsewhere then never meet."""

    def load(self) -> CheckpointView:
        numbers = self.numbers()
        if not numbers:
            return EMPTY
        record = self.record(numbers[-1])
        return replace(
            EMPTY, number=record.number, last_epoch=record.last_epoch, term=record.term, run=record.run
        )

    def commit(self, view: CheckpointView, record: CommitRecord) -> Committed | Adopted:
        parent = Parent(number=view.number, checksum=view.checksum)
        data = seal("commit", msgspec.structs.replace(record, number=record.last_epoch, parent=parent))
        if once.write_once(self.storage, names.commit(record.last_epoch), data) != data:
            return self._give_way(record.term, record.run)
        return Committed(self.load())


def test_numbering_commits_by_epoch_is_found_out() -> None:
    class NoRetention(Retention):
        def after_commit(self, head: CheckpointView) -> Retired | None:
            return None

    def epochs_once(world: World, record: CommitRecord, stored: str) -> None:
        covered = {e for other, _ in world.chain for e in range(other.first_epoch, other.last_epoch + 1)}
        if covered & set(range(record.first_epoch, record.last_epoch + 1)):
            raise Violation(f"commit {record.number} covers epoch {record.first_epoch} again")
        world.chain.append((record, stored))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(World, "_grow", epochs_once)
        patch.setattr(World, "check_retained", lambda world: None)
        simulate_clean = [simulate(seed, Doubles(retention=NoRetention)) for seed in range(20)]
        assert all(world.chain for world in simulate_clean), "the checker is content with the real chain"
        _, found = seed_that_finds(Doubles(chain=NumberedByEpoch, retention=NoRetention))
    assert "again" in found
