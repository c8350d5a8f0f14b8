"""Keys that are saved on their own: saving, losing, fetching, and what is never done."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.state.files.saved_key import unpack
from holdfast.storage.key_saves.contract import StateId
from holdfast.tasks.uncoordinated import saver
from holdfast.tasks.uncoordinated.circuit_breaker import Standing
from holdfast.testing.clocks import ManualClock
from tests.unit.tasks.uncoordinated.kit import Count, MemoryStates, Shard, uncoordinated


@pytest.fixture(autouse=True)
def _own_threads() -> Iterator[None]:
    saver._savers.clear()
    yield
    saver._savers.clear()


def test_a_dirty_key_is_saved_when_it_is_due_and_not_before(tmp_path: Path) -> None:
    states = MemoryStates()
    shard = Shard(tmp_path, uncoordinated(states, every="20s"))
    shard.epoch(["ann", "bob"])
    shard.epoch(["bob"], after_ms=19_000)
    shard.settle()
    assert states.saved == {}
    shard.epoch(["cid"], after_ms=1_000)
    shard.settle()
    assert states.events() == {"ann": 1, "bob": 2}


@dataclass
class Drawers(MemoryStates):
    """Keys that end alike are cheap to save together."""

    together: list[set[bytes]] = field(default_factory=list)

    def near(self, id: StateId) -> bytes:
        return id.key[-1:]

    def save_many(self, saves: Sequence[tuple[StateId, bytes]]) -> None:
        self.together.append({id.key[-1:] for id, _ in saves})
        super().save_many(saves)


def test_keys_that_are_cheaper_to_save_together_are(tmp_path: Path) -> None:
    states = Drawers()
    shard = Shard(tmp_path, uncoordinated(states, every="1s", batch=4))
    shard.epoch([f"{name}{drawer}" for name in "abcd" for drawer in "xyz"])
    shard.epoch(["later"], after_ms=2_000)
    shard.settle()
    assert states.together == [{b"x"}, {b"y"}, {b"z"}]


def test_what_is_saved_is_clean_and_not_saved_again(tmp_path: Path) -> None:
    states = MemoryStates()
    shard = Shard(tmp_path, uncoordinated(states, every="1s"))
    shard.epoch(["ann"])
    for _ in range(4):
        shard.epoch(["bob"], after_ms=5_000)
        shard.settle()
    assert shard.last is not None
    assert states.events() == {"ann": 1, "bob": 3}
    assert states.calls["save"] == 1 + 3


def test_events_that_come_while_a_save_is_under_way_stay_dirty(tmp_path: Path) -> None:
    """Dirty is cleared for the version that was saved."""
    states = MemoryStates()
    shard = Shard(tmp_path, uncoordinated(states, every="1s"))
    shard.epoch(["ann"])
    states.open.clear()
    shard.epoch(["ann", "ann"], after_ms=2_000)  # its save, of one event, hangs
    states.open.set()
    shard.settle()
    assert states.events() == {"ann": 1}
    shard.epoch(["ann"], after_ms=500)
    assert shard.last is not None
    assert shard.last.unsaved == 3
    shard.epoch(["bob"], after_ms=2_000)
    shard.settle()
    assert states.events()["ann"] == 4


def test_a_save_that_fails_leaves_the_key_dirty_and_is_tried_again(tmp_path: Path) -> None:
    """S4 cleared the flag before the save was durable."""
    states = MemoryStates(down=True)
    shard = Shard(tmp_path, uncoordinated(states, every="1s", failures_max=1_000))
    states.down = False
    shard.epoch(["ann"])
    states.down = True
    failed = 0
    for after_ms in (2_000, 100):
        shard.epoch(["ann"], after_ms=after_ms)
        shard.settle()
        assert shard.last is not None
        failed += shard.last.counts.failed
    assert failed >= 1
    assert shard.last is not None
    assert shard.last.unsaved == 3
    states.down = False
    shard.epoch(["ann"], after_ms=100)
    shard.settle()
    assert states.events()["ann"] == 3


def test_pools_that_are_full_refuse_and_the_keys_stay_dirty(tmp_path: Path) -> None:
    states = MemoryStates()
    one = hf.SavingPool(threads=1, outstanding=1)
    shard = Shard(tmp_path, uncoordinated(states, every="1s", storing=one, serializing=one, batch=1))
    users = [f"u{i}" for i in range(9)]
    shard.epoch(users)
    epochs = 0
    while not set(users) <= set(states.events()) and epochs < 200:
        shard.epoch(["other"], after_ms=2_000)
        shard.settle()
        epochs += 1
    assert set(users) <= set(states.events())
    assert epochs >= len(users), "one at a time"


def test_a_lost_copy_goes_on_from_its_saves_key_by_key(tmp_path: Path) -> None:
    states = MemoryStates()
    shard = Shard(tmp_path, uncoordinated(states, every="1s"))
    shard.epoch(["ann"] * 5 + ["bob"] * 3)
    shard.epoch(["ann"], after_ms=2_000)  # saves ann at 5 and bob at 3, then counts one more of ann
    shard.settle()
    shard.lose_copy()
    assert shard.epoch(["ann"]) == {"ann": 6}, "the sixth was lost with the copy, this is another sixth"
    assert states.calls["fetch"] > 0
    assert shard.epoch(["bob"]) == {"bob": 4}


def test_the_loss_is_counted_by_events_in_no_save(tmp_path: Path) -> None:
    states = MemoryStates()
    shard = Shard(tmp_path, uncoordinated(states, every="1s"))
    seen = {"ann": 0, "bob": 0}
    for users in (["ann"] * 5, ["ann", "bob"], ["bob"] * 2, ["ann"] * 3):
        # The last one knows of all saves that there will be.
        states.down = users == ["ann"] * 3
        shard.epoch(users, after_ms=2_000)
        shard.settle()
        for user in users:
            seen[user] += 1
    saved = states.events()
    reference = sum(seen.values()) - sum(saved.values())
    assert reference > 0
    assert shard.last is not None
    assert shard.last.unsaved == reference


def test_working_state_that_survives_loses_nothing_when_the_process_does(tmp_path: Path) -> None:
    states = MemoryStates()
    shard = Shard(tmp_path, uncoordinated(states, every="1h"))
    shard.epoch(["ann"] * 4)
    saver._savers.clear()  # the process, its threads and what they knew
    shard.run_id = "next process"
    assert shard.epoch(["ann"]) == {"ann": 5}


def test_a_task_that_runs_again_counts_its_rows_once(tmp_path: Path) -> None:
    shard = Shard(tmp_path, uncoordinated(MemoryStates(), every="1h"))
    shard.epoch(["ann"])
    assert shard.epoch(["ann"], chosen=False) == {"ann": 2}
    assert shard.epoch(["ann"]) == {"ann": 2}


def test_a_save_taken_on_a_way_that_was_given_up_does_not_make_a_key_clean(tmp_path: Path) -> None:
    states = MemoryStates()
    shard = Shard(tmp_path, uncoordinated(states, every="1s", fetch_timeout="50ms"))
    shard.epoch(["ann"], after_ms=1)
    before, epochs = shard.version, shard.epochs
    shard.epoch(["ann"], after_ms=100)
    states.open.clear()
    shard.epoch(["bob"], after_ms=5_000)  # begins to save ann's two events
    shard.version, shard.epochs = before, epochs  # the commit failed: back to before the second epoch
    shard.epoch(["ann"], after_ms=100)  # as many events, but others
    states.open.set()
    shard.settle()
    assert states.calls["save"] == 1
    assert states.events() == {"ann": 2}
    shard.epoch(["cid"], after_ms=1)
    shard.settle()
    assert states.calls["save"] == 2, "saved again, as it is now"


def test_an_unanswered_fetch_never_overwrites_the_save(tmp_path: Path) -> None:
    """S4 started such a key empty and saved that over the good state."""
    states = MemoryStates()
    shard = Shard(tmp_path, uncoordinated(states, every="1s", fetch_timeout="50ms"))
    shard.epoch(["ann"] * 7)
    shard.epoch(["bob"], after_ms=2_000)
    shard.settle()
    assert states.events()["ann"] == 7
    shard.lose_copy()
    states.open.clear()
    assert shard.epoch(["ann"]) == {"ann": 1}, "it goes on from nothing"
    states.open.set()
    for _ in range(3):
        shard.epoch(["cid"], after_ms=5_000)
        shard.settle()
    assert states.events()["ann"] == 7, "held back until somebody answers"
    assert shard.epoch(["ann"]) == {"ann": 8}, "the save counts"
    assert shard.last is not None
    assert shard.last.discarded == 1


def test_an_unfetched_key_is_saved_once_it_is_known_that_no_save_exists(tmp_path: Path) -> None:
    states = MemoryStates()
    shard = Shard(tmp_path, uncoordinated(states, every="1s", fetch_timeout="50ms"))
    states.open.clear()
    shard.epoch(["ann"])
    states.open.set()
    shard.epoch(["bob"], after_ms=2_000)
    shard.settle()
    assert states.events() == {"ann": 1}
    assert shard.epoch(["ann"]) == {"ann": 2}, "its own save does not send it back"
    assert shard.last is not None
    assert shard.last.discarded == 0


def test_storage_down_is_bypassed_after_ten_failures_and_asked_again_after_the_window(tmp_path: Path) -> None:
    states, clock = MemoryStates(), ManualClock()
    shard = Shard(tmp_path, uncoordinated(states, every="1h"))
    shard.epoch(["first"])
    shard.saver.fetcher.clock = clock
    states.down = True
    for i in range(15):
        assert shard.epoch([f"u{i}"]) == {f"u{i}": 1}, "processing goes on"
    assert states.calls["fetch"] == 1 + 10
    states.down = False
    clock.sleep(599)
    shard.epoch(["v"])
    assert states.calls["fetch"] == 11, "left alone for the whole window, also when it is back"
    clock.sleep(1)
    shard.epoch(["w"])
    shard.epoch(["x"])
    assert states.calls["fetch"] == 13, "asked again after the window"


def test_the_phase_of_a_count_survives_a_loss(tmp_path: Path) -> None:
    """S4's counter began at 0 again."""
    states = MemoryStates()
    shard = Shard(tmp_path, uncoordinated(states, events=10))
    shard.epoch(["ann"] * 14)
    shard.epoch(["bob"])
    shard.settle()
    assert states.events() == {"ann": 14}
    shard.lose_copy()
    shard.epoch(["ann"] * 5)
    shard.epoch(["bob"])
    shard.settle()
    assert states.events()["ann"] == 14, "19 events: not due"
    shard.epoch(["ann"])
    shard.epoch(["bob"])
    shard.settle()
    assert states.events()["ann"] == 20


def test_an_idle_key_is_saved_before_it_is_evicted_and_fetched_when_it_comes_back(tmp_path: Path) -> None:
    """S4's cache dropped a key with all that was not saved."""
    states = MemoryStates()
    shard = Shard(tmp_path, uncoordinated(states, every="10h", evict_after="60s"))
    shard.epoch(["ann"] * 3)
    evicted = 0
    for _ in range(4):
        shard.epoch(["bob"], after_ms=61_000)
        shard.settle()
        assert shard.last is not None
        evicted += shard.last.counts.evicted
    assert states.events().get("ann") == 3
    assert evicted == 1
    before = states.calls["fetch"]
    assert shard.epoch(["ann"]) == {"ann": 4}
    assert states.calls["fetch"] == before + 1


def test_a_superseded_copy_cannot_overwrite_later_saves(tmp_path: Path) -> None:
    states = MemoryStates()
    old = Shard(tmp_path / "a", uncoordinated(states, every="1s"))
    old.epoch(["ann"] * 2)
    new = Shard(tmp_path / "b", uncoordinated(states, every="1s"), run="new leader")
    new.term = 2
    new.epoch(["ann"] * 9)
    new.epoch(["bob"], after_ms=2_000)
    new.settle()
    assert states.events()["ann"] == 9
    old.run_id = "old leader"
    refused = 0
    for after_ms in (2_000, 1):
        old.epoch(["bob"], after_ms=after_ms)
        old.settle()
        assert old.last is not None
        refused += old.last.counts.superseded
    assert states.events()["ann"] == 9
    assert refused + old.saver.take_counts().superseded >= 1


def test_saves_carry_the_term_of_their_task_also_when_a_run_leads_again(tmp_path: Path) -> None:
    states = MemoryStates()
    shard = Shard(tmp_path, uncoordinated(states, every="1s"))
    shard.epoch(["ann"])
    shard.term += 1  # the same run, the same process, the same threads
    shard.epoch(["bob"], after_ms=2_000)
    shard.settle()
    assert [unpack(data, id).term for id, data in states.saved.items()] == [shard.term]


def test_a_new_checkpoint_goes_on_from_the_saves_of_the_one_before(tmp_path: Path) -> None:
    states = MemoryStates()
    old = Shard(tmp_path / "a", uncoordinated(states, every="1s"))
    old.term, old.epochs = 40, 900
    old.epoch(["ann"] * 3)
    old.epoch(["bob"], after_ms=2_000)
    old.settle()
    new = Shard(tmp_path / "b", uncoordinated(states, every="1s"), run="new")
    assert new.epoch(["ann"]) == {"ann": 4}
    new.epoch(["bob"], after_ms=2_000)
    new.settle()
    assert states.events()["ann"] == 4


class Hooked(Count):
    told: list[bytes] = []  # noqa: RUF012

    def is_dirty(self, ctx: Any) -> bool:
        return self.n.value % 2 == 0

    def checkpoint(self, ctx: Any) -> bool:
        return bool(ctx.key == "now")

    def clear_dirty(self, key: bytes) -> None:
        self.told.append(key)

    def serialize_state(self, states: dict[str, Any]) -> bytes:
        return json.dumps(states).encode()

    def restore_state(self, data: bytes) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(data)
        return found


def test_the_function_decides_what_is_dirty_when_it_is_saved_and_as_what(tmp_path: Path) -> None:
    states = MemoryStates()
    Hooked.told.clear()
    shard = Shard(tmp_path, uncoordinated(states, every="1h"), Hooked())
    shard.epoch(["odd", "now", "now", "later", "later"])
    shard.epoch(["odd2"])
    shard.settle()
    assert states.events() == {"now": 2}, "odd is not dirty, later is not due"
    (data,) = states.saved.values()
    assert data.endswith(b'{"n": 2}')
    assert [key[5:] for key in Hooked.told] == [b"now"]
    shard.lose_copy()
    assert shard.epoch(["now"]) == {"now": 3}


class Everything(hf.KeyedFunction):
    output = "user string, n long"
    items = hf.ListState("string")
    counts = hf.MapState("string", "long")
    total = hf.ReducingState("long", lambda a, b: a + b)

    def process(self, row: Any, ctx: Any) -> Iterator[tuple[str, int]]:
        self.items.append(row.user)
        self.counts["n"] = self.counts.get("n", 0) + 1
        self.total.add(1)
        assert len(self.items) == len(list(self.items)) == self.counts["n"] == self.total.value
        yield row.user, self.total.value


def test_every_kind_of_state_and_long_keys_come_back(tmp_path: Path) -> None:
    states = MemoryStates()
    long = "x" * 900
    shard = Shard(tmp_path, uncoordinated(states, every="1s"), Everything())
    shard.epoch(["ann"] * 3 + [long] * 2)
    shard.epoch(["bob"], after_ms=2_000)
    shard.settle()
    shard.lose_copy()
    assert shard.epoch(["ann", long]) == {"ann": 4, long: 3}


def test_a_damaged_save_is_held_on_to_and_processing_goes_on(tmp_path: Path) -> None:
    states = MemoryStates()
    shard = Shard(tmp_path, uncoordinated(states, every="1s"))
    shard.epoch(["ann"] * 3)
    shard.epoch(["bob"], after_ms=2_000)
    shard.settle()
    damaged = {id: data[:-1] + bytes([data[-1] ^ 1]) for id, data in states.saved.items()}
    states.saved.update(damaged)
    shard.lose_copy()
    assert shard.epoch(["ann"]) == {"ann": 1}
    assert shard.last is not None
    assert "damaged" in shard.last.counts.error
    shard.epoch(["cid"], after_ms=5_000)
    shard.settle()
    assert {id: states.saved[id] for id in damaged} == damaged, "a human decides"


def test_a_fetch_may_take_long_while_answers_come(tmp_path: Path) -> None:
    """Each answer may take the time-out: keys of a healthy storage are never given up for being many."""
    states = MemoryStates()
    users = [f"u{i}" for i in range(12)]
    shard = Shard(tmp_path, uncoordinated(states, every="1s", fetch_timeout="2s", batch=1))
    shard.epoch(users)
    shard.epoch(users, after_ms=2_000)
    shard.settle()
    shard.lose_copy()
    states.takes_seconds = 0.3
    assert shard.epoch(users) == dict.fromkeys(users, 2), "3.6 seconds in all"


def test_a_storage_that_hangs_costs_an_epoch_one_time_out_and_is_bypassed_after_ten(tmp_path: Path) -> None:
    states = MemoryStates()
    states.open.clear()
    shard = Shard(tmp_path, uncoordinated(states, every="1h", fetch_timeout="200ms", batch=1))
    users = [f"u{i}" for i in range(15)]
    for n in range(1, 11):
        assert n == 1 or shard.saver.fetcher.standing is Standing.ANSWERING, f"after {n - 1} silences"
        # One silence for all of them: with one for each key the storage would be bypassed at once.
        assert shard.epoch(users) == dict.fromkeys(users, n)
    assert shard.saver.fetcher.standing is Standing.BYPASSED
    shard.epoch(["v"])
    assert shard.last is not None
    assert shard.last.counts.bypassed == 1
    states.open.set()


def test_an_answer_after_the_window_serves_the_whole_epoch(tmp_path: Path) -> None:
    states, clock = MemoryStates(), ManualClock()
    shard = Shard(tmp_path, uncoordinated(states, every="1s", failures_max=1, batch=1))
    shard.epoch(["ann", "bob"])
    shard.epoch(["ann", "bob"], after_ms=2_000)
    shard.settle()
    shard.lose_copy()
    shard.epoch(["first"])
    shard.saver.fetcher.clock = clock
    states.down = True
    shard.epoch(["other"])
    assert shard.saver.fetcher.standing is Standing.BYPASSED
    states.down = False
    clock.sleep(600)
    assert shard.epoch(["ann", "bob"]) == {"ann": 2, "bob": 2}


class Picky(Count):
    """Cannot serialise some users."""

    def serialize_state(self, states: dict[str, Any]) -> bytes:
        assert states["n"] != 2, "says the user's code"
        return json.dumps(states).encode()

    def restore_state(self, data: bytes) -> dict[str, Any]:
        states: dict[str, Any] = json.loads(data)
        return states


def test_a_key_that_cannot_be_serialised_keeps_no_other_from_being_saved(tmp_path: Path) -> None:
    states = MemoryStates()
    shard = Shard(tmp_path, uncoordinated(states, every="1s"), Picky())
    shard.epoch(["ann", "bob", "bob", "cid"])
    shard.epoch(["dan"], after_ms=2_000)
    shard.settle()
    assert states.events() == {"ann": 1, "cid": 1}
    for user in ("bob", "eve"):
        shard.epoch([user], after_ms=2_000)
        shard.settle()
    assert states.events()["bob"] == 3, "tried again as it is now"


def test_a_damaged_save_keeps_no_other_key_from_being_saved(tmp_path: Path) -> None:
    states = MemoryStates()
    shard = Shard(tmp_path, uncoordinated(states, every="1s", fetch_timeout="50ms"))
    states.open.clear()
    shard.epoch(["ann", "bob"])  # nobody could say whether they have saves
    states.open.set()
    states.saved[StateId("op", b"\x01\x00\x00\x00\x03ann")] = b"damaged"
    shard.epoch(["cid"], after_ms=2_000)
    shard.settle()
    found = {id.key[5:].decode(): data for id, data in states.saved.items()}
    assert found["ann"] == b"damaged"
    assert unpack(found["bob"], StateId("op", b"")).events == 1
