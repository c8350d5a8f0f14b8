"""What is lost: bounded by the schedule, counted, and nothing else, also when the storage misbehaves."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.state.encoding.layout import StateField, StateKind, StateLayout
from holdfast.state.files.saved_key import unpack
from holdfast.state.files.schema_conversion import Generation, Lineage
from holdfast.storage.key_saves.files import FileStateStorage
from holdfast.tasks.uncoordinated import saver
from tests.contract.state_storage_suite import all_saves
from tests.unit.tasks.uncoordinated.kit import Count, MemoryStates, Shard, uncoordinated

CHECKOUT = Path(__file__).parents[4]


@pytest.fixture(autouse=True)
def _own_threads() -> Iterator[None]:
    saver._savers.clear()
    yield
    saver._savers.clear()


CHILD = """
import json, random, sys
from pathlib import Path
from holdfast.storage.key_saves.files import FileStateStorage
from tests.unit.tasks.uncoordinated.kit import Shard, uncoordinated
root, seed = Path(sys.argv[1]), int(sys.argv[2])
chance = random.Random(seed)
shard = Shard(root, uncoordinated(FileStateStorage(root / "states"), every="3s"))
while True:
    users = [f"u{chance.randrange(20)}" for _ in range(30)]
    print(json.dumps({"before": users}), flush=True)
    shard.epoch(users, after_ms=1_000)
    print(json.dumps({"done": users, "unsaved": shard.last.unsaved}), flush=True)
    shard.settle()  # the storage keeps up
"""


def test_a_process_killed_with_its_disk_loses_something_and_no_more_than_it_told(tmp_path: Path) -> None:
    for seed in range(3):
        root = tmp_path / str(seed)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(CHECKOUT / "src"), str(CHECKOUT)])}
        with subprocess.Popen(
            [sys.executable, "-c", CHILD, str(root), str(seed)], stdout=subprocess.PIPE, env=environment
        ) as child:
            assert child.stdout is not None
            told = [json.loads(child.stdout.readline()) for _ in range(2 * (15 + seed))]
            child.send_signal(signal.SIGKILL)
            told += [json.loads(line) for line in child.stdout if line.endswith(b"\n")]
        finished = [each for each in told if "done" in each]
        reference = Counter(user for each in finished for user in each["done"])
        stored = all_saves(FileStateStorage(root / "states"), "op")
        saves = {id.key[5:].decode(): unpack(data, id) for id, data in stored}
        lost = Counter(reference)
        lost.subtract({user: save.events for user, save in saves.items()})
        assert all(count >= 0 for count in lost.values()), "saved is what a finished epoch left"
        assert 0 < sum(lost.values()) <= finished[-1]["unsaved"]
        # Three epochs until they are due, one that finds them due, and one whose saves are under way.
        recent = Counter(user for each in finished[-5:] for user in each["done"])
        assert all(lost[user] <= recent[user] for user in lost)
        given = uncoordinated(FileStateStorage(root / "states"), every="3s")
        shard = Shard(root / "after", given, run=root.name)
        assert shard.epoch(sorted(saves)) == {user: save.events + 1 for user, save in saves.items()}


def test_no_event_older_than_the_interval_and_one_epoch_is_in_no_save(tmp_path: Path) -> None:
    chance, states = random.Random(7), MemoryStates()
    shard = Shard(tmp_path, uncoordinated(states, every="5s"))
    seen: dict[str, list[int]] = {}
    now, gap = 0, 0
    for _ in range(40):
        gap = chance.randrange(100, 2_500)
        now += gap
        users = [f"u{chance.randrange(12)}" for _ in range(chance.randrange(1, 20))]
        shard.epoch(users, after_ms=gap)
        shard.settle()
        saved = states.events()
        for user, times in seen.items():
            unsaved = times[saved.get(user, 0) :]
            assert not unsaved or now - unsaved[0] <= 5_000 + 2_500, f"{user} waits since {unsaved[0]}"
        for user in users:
            seen.setdefault(user, []).append(now)


def test_a_storage_that_fails_now_and_then_gets_every_key_in_the_end(tmp_path: Path) -> None:
    chance, states = random.Random(3), MemoryStates()
    shard = Shard(tmp_path, uncoordinated(states, every="1s", batch=2))
    count: Counter[str] = Counter()
    for _ in range(40):
        states.fails_next = chance.choice([0, 0, 1, 2])
        users = [f"u{chance.randrange(8)}" for _ in range(5)]
        count.update(users)
        for user, n in shard.epoch(users, after_ms=2_000).items():
            assert n <= count[user]
        shard.settle()
    states.fails_next = 0
    for _ in range(3):
        shard.epoch([*count], after_ms=2_000)
        count.update([*count])
        shard.settle()
    shard.epoch(["last"], after_ms=2_000)
    shard.settle()
    assert shard.last is not None
    saved = states.events()
    assert set(count) <= set(saved)
    assert sum(count.values()) - sum(saved[user] for user in count) == shard.last.discarded


def test_a_slow_storage_does_not_slow_the_rows(tmp_path: Path) -> None:
    states = MemoryStates()
    shard = Shard(tmp_path, uncoordinated(states, every="1s"))
    shard.epoch([f"u{i}" for i in range(50)])
    states.open.clear()
    began = time.monotonic()
    for _ in range(5):
        shard.epoch([f"u{i}" for i in range(50)], after_ms=2_000)
    assert time.monotonic() - began < 10, "no epoch waited for a save"
    assert states.saved == {}
    states.open.set()
    shard.settle()
    assert states.saved


def test_saves_follow_a_change_of_the_declared_types(tmp_path: Path) -> None:
    states = MemoryStates()
    old = Shard(tmp_path / "a", uncoordinated(states, every="1s"))
    key = pa.schema([("user", pa.string())])
    first = StateLayout("op", key, (StateField(1, "n", StateKind.VALUE, pa.int32()),))
    second = StateLayout("op", key, (StateField(1, "n", StateKind.VALUE, pa.int64()),), generation=1)
    old.lineage = Lineage.begin(first)
    old.epoch(["ann"] * 3)
    old.epoch(["bob"], after_ms=2_000)
    old.settle()
    new = Shard(tmp_path / "b", uncoordinated(states, every="1s"), run="new code")
    new.lineage = Lineage((Generation(first), Generation(second)))
    assert new.epoch(["ann"]) == {"ann": 4}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "needs one of every="),
        ({"every": "20s", "events": 3}, "needs one of every="),
        ({"events": 0}, "at least 1"),
        ({"every": "soon"}, "'soon' is not a duration"),
        ({"every": "0s"}, "no time at all"),
        ({"events": 5, "storing": hf.SavingPool(threads=0)}, "storing has 0 threads"),
        ({"events": 5, "storage": "redis://x"}, "not a storage for states of keys"),
    ],
)
def test_wrong_settings_are_refused_with_the_place_and_the_remedy(
    settings: dict[str, object], said: str
) -> None:

    job = hf.Job("j")
    given = hf.Uncoordinated(**{"storage": MemoryStates(), **settings})  # type: ignore[arg-type]
    stream = job.source(hf.MemorySource([("a",)], schema="user string"), uid="in").key_by("user")
    stream.process(Count(), uid="op", protection=given).sink(hf.MemorySink(), uid="out")
    with pytest.raises(hf.DefinitionError, match=said) as refused:
        job.start("unused")
    assert "test_loss.py" in str(refused.value)
