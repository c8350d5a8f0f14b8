"""What every working-state backend promises while processes are killed, stopped, doubled and wake up late."""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.state.contract import EMPTY_VERSION, ShardState, StaleWorkingState
from holdfast.state.local import database
from holdfast.state.local.backends import MEMORY_DIR, attach_state
from tests.contract.state_stories import (
    DEADLINE_S,
    KEYS,
    Player,
    counted,
    expected,
    lock_timeout,
    opened,
    playing,
    target,
    v,
    values,
)

BACKENDS = ["lmdb", "memory", "rocksdb"]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def shard(backend: str, tmp_path: Path) -> Iterator[Path]:
    """The shard's directory: for "memory" really in memory, where there is such a file system."""
    in_memory = backend == "memory" and MEMORY_DIR.is_dir()
    root = Path(tempfile.mkdtemp(prefix="holdfast-test-", dir=MEMORY_DIR)) if in_memory else tmp_path
    yield root / "shard"
    if in_memory:
        shutil.rmtree(root)


@pytest.fixture(autouse=True)
def patient() -> Iterator[None]:
    with lock_timeout(DEADLINE_S):
        yield


def attached(backend: str, directory: Path) -> ShardState:
    state = attach_state(directory, "job", backend=backend)
    assert state is not None
    return state


def wait_until(condition: Callable[[], bool], what: str) -> None:
    give_up = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < give_up, f"waited {DEADLINE_S} s for {what}"
        time.sleep(0.002)


def stop(player: Player) -> None:
    pid = player.process.pid
    os.kill(pid, signal.SIGSTOP)
    status = Path(f"/proc/{pid}/stat")
    wait_until(lambda: status.read_text().rsplit(")", 1)[1].split()[0] == "T", "the process to stop")


def test_sigkill_at_any_moment_leaves_a_whole_epoch_and_a_true_marker(backend: str, shard: Path) -> None:
    chance = random.Random(7)
    reached = 0
    for _ in range(8):
        with playing("apply_for_ever", backend, shard, str(reached)) as player:
            for _ in range(chance.randrange(1, 12)):
                reached = int(player.heard())
            player.kill()
            reached = int(([str(reached), *player.rest_heard()])[-1])
        state = attached(backend, shard)
        assert state.version.epoch in (reached, reached + 1), "none lost, at most the one under way came"
        assert values(state) == expected(state.version.epoch)
        state.close()
        state = opened(backend, shard, target(reached, committed=max(0, reached - 3)))
        assert values(state) == expected(reached)
        state.close()
    assert os.listdir(shard) == ["g00000001"], "nothing was rebuilt: undo and marker were enough"


def test_twins_may_disturb_but_never_mislead_each_other(backend: str, shard: Path) -> None:
    with (
        playing("be_a_twin", backend, shard, "one", "15") as one,
        playing("be_a_twin", backend, shard, "two", "15") as two,
    ):
        assert (one.heard(), two.heard()) == ("done", "done")
        for player in (one, two):
            assert player.process.wait(DEADLINE_S) == 0
    state = attached(backend, shard)
    assert values(state) == expected(state.version.epoch)
    assert state.version.epoch in (14, 15)
    state.close()


def zombie_story(backend: str, shard: Path) -> None:
    """A process falls asleep before it applies epoch 2; others go on to epoch 4; then it wakes up."""
    with playing("be_a_zombie", backend, shard) as zombie, lock_timeout(0.2):
        assert zombie.heard() == "asleep"
        state = opened(backend, shard, target(1))
        for epoch in (2, 3, 4):
            state.apply(v(epoch - 1), v(epoch), counted(epoch), epoch - 1)
        zombie.nudge()
        assert zombie.heard() in ("refused", "applied"), "applied: in files of its own, which nobody opens"
        assert zombie.heard() == "closed"
        assert values(state) == expected(4)
        state.close()
        again = attached(backend, shard)
        assert (again.version, values(again)) == (v(4), expected(4))
        again.close()


def test_a_zombie_cannot_overwrite_its_successor(backend: str, shard: Path) -> None:
    zombie_story(backend, shard)


def test_a_process_that_lets_go_in_time_is_waited_for(backend: str, shard: Path) -> None:
    with playing("be_a_zombie", backend, shard) as other:
        assert other.heard() == "asleep"
        other.nudge()
        state = opened(backend, shard, target(1))
        try:
            found = values(state)
        except StaleWorkingState:
            # It applied between our opening and our reading, once: a task then opens again.
            state.close()
            state = opened(backend, shard, target(1))
            found = values(state)
        assert found == expected(1), "what it applied is undone, or came later and was refused"
        state.close()
        assert os.listdir(shard) == ["g00000001"], "nothing was rebuilt"


def test_a_stopped_process_stops_nobody_else(backend: str, shard: Path) -> None:
    with playing("apply_for_ever", backend, shard, "0") as player, lock_timeout(0.2):
        for _ in range(5):
            player.heard()
        stop(player)
        state = opened(backend, shard, target(2))
        assert values(state) == expected(2)
        state.apply(v(2), v(3), counted(3), 2)
        os.kill(player.process.pid, signal.SIGCONT)
        assert (state.version, values(state)) == (v(3), expected(3))
        state.close()
        player.kill()
    again = opened(backend, shard, target(3, committed=2))
    assert values(again) == expected(3)
    again.close()
    assert len(os.listdir(shard)) == 1, "what the dead process used was swept"


def test_what_one_process_closed_the_next_one_opens(backend: str, shard: Path) -> None:
    for epoch in (1, 2, 3):
        with playing("open_once", backend, shard, str(epoch)) as player:
            assert player.heard() == str(b"%d" % epoch)
            assert player.process.wait(DEADLINE_S) == 0
        state = opened(backend, shard, target(epoch, committed=epoch))
        assert values(state) == expected(epoch)
        state.close()
    assert os.listdir(shard) == ["g00000001"], "nothing was rebuilt"


@pytest.mark.parametrize("backend", ["lmdb", "rocksdb"])
def test_without_the_marker_check_a_late_handle_overwrites_its_successor(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, successor = (opened(backend, tmp_path, target(1)) for _ in range(2))
    for epoch in (2, 3):
        successor.apply(v(epoch - 1), v(epoch), counted(epoch), epoch - 1)
    with pytest.raises(StaleWorkingState):
        late.apply(v(1), v(2, "late"), [(KEYS[0], b"late")], 0)
    assert values(successor) == expected(3)
    monkeypatch.setattr(database, "check_parent", lambda tx, at, parent: at)
    late.apply(v(1), v(2, "late"), [(KEYS[0], b"late")], 0)
    assert values(late) == {b"3", b"late"}, "a state that no history has"


@pytest.mark.parametrize("backend", ["lmdb", "rocksdb"])
def test_without_undo_a_dead_attempt_stays_in_the_state(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def story(directory: Path) -> bytes | None:
        state = opened(backend, directory, target(0))
        state.apply(EMPTY_VERSION, v(1, "dead"), [(b"\x00\x00dead", b"1")], 0)
        return opened(backend, directory, target(1)).get(b"\x00\x00dead")

    assert story(tmp_path / "whole") is None
    monkeypatch.setattr(database, "unpack_undo", lambda data: [])
    assert story(tmp_path / "broken") == b"1"
