"""Working state under kills, twins, zombies and stopped processes; and that each safeguard is needed."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import CorruptionError, ObjectMissing, StorageError
from holdfast.state.contract import (
    EMPTY_VERSION,
    DeltaStep,
    Entries,
    Route,
    ShardState,
    SnapshotSource,
    StaleWorkingState,
    StateTarget,
    Version,
    route,
)
from holdfast.state.local import database, directories, lmdb_store, snapshot_file, tables
from holdfast.state.local.backends import attach_state, open_state
from holdfast.state.local.lmdb_backend import LmdbShard

KEYS = [b"\x00\x00" + number.to_bytes(4, "big") for number in range(400)]
DEADLINE_S = 30.0
START = StateTarget(EMPTY_VERSION, 0, 1)
_fork = multiprocessing.get_context("fork")


def v(epoch: int, result: str = "a") -> Version:
    return Version(epoch, 1, result)


def counted(epoch: int) -> Entries:
    """The changes of an epoch: every key gets its number, so a mixture of two epochs shows at once."""
    return [(key, b"%d" % epoch) for key in KEYS]


def chain(last: int) -> tuple[DeltaStep, ...]:
    return tuple(
        DeltaStep(v(e), v(e - 1) if e > 1 else EMPTY_VERSION, lambda e=e: counted(e))  # type: ignore[misc]
        for e in range(1, last + 1)
    )


def target(epoch: int, committed: int = 0) -> StateTarget:
    return StateTarget(v(epoch) if epoch else EMPTY_VERSION, 0, 1, (), chain(epoch), committed)


def opened(directory: Path, wanted: StateTarget = START) -> ShardState:
    return open_state(directory, "job", wanted)


def values(state: ShardState) -> set[bytes | None]:
    return set(state.get_many(KEYS))


def expected(epoch: int) -> set[bytes | None]:
    return {b"%d" % epoch if epoch else None}


def wait_until(condition: Callable[[], bool], what: str) -> None:
    give_up = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < give_up, f"waited {DEADLINE_S} s for {what}"
        time.sleep(0.002)


@contextmanager
def child(work: Callable[[Connection], None]) -> Iterator[tuple[Any, Connection]]:
    """A real process that runs `work` with one end of a pipe; killed at the end, whatever state it is in."""
    ours, theirs = _fork.Pipe()
    process = _fork.Process(target=work, args=(theirs,))
    process.start()
    theirs.close()
    try:
        yield process, ours
    finally:
        process.kill()
        process.join(DEADLINE_S)
        ours.close()


def heard(pipe: Connection) -> Any:
    assert pipe.poll(DEADLINE_S), f"the child said nothing for {DEADLINE_S} s"
    return pipe.recv()


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"


def written_snapshot(tmp_path: Path, value: bytes = b"1", count: int = len(KEYS)) -> SnapshotSource:
    state = opened(tmp_path / "origin")
    keys = [b"\x00\x00" + number.to_bytes(4, "big") for number in range(count)]
    state.apply(EMPTY_VERSION, v(1), [(key, value) for key in keys], 0)
    info = state.snapshot(tmp_path / "snapshot")
    return SnapshotSource(v(1), 0, 1, tmp_path / "snapshot", info.length, info.chunk_bytes, info.chunks)


def generations_in(directory: Path) -> list[str]:
    return sorted(name for name in os.listdir(directory) if name != "fetched")


# Choosing the way


def test_the_way_is_the_shortest_that_undo_and_deltas_allow() -> None:
    deltas = chain(3)
    wanted = StateTarget(v(3), 0, 1, (), deltas)
    assert route([v(3)], wanted) == Route(v(3), ())
    assert route([v(1)], wanted) == Route(v(1), deltas[1:])
    assert route([v(3, "lost"), v(2)], wanted) == Route(v(2), deltas[2:])
    assert route([v(4), v(3), v(2)], wanted) == Route(v(3), ())
    assert route([v(4)], wanted) is None
    assert route([], wanted) is None


def test_a_chain_is_not_joined_before_its_newest_snapshot() -> None:
    deltas = chain(4)[2:]
    sources = tuple(SnapshotSource(v(e), e - 2, e - 1, Path("-"), 0, 1, ()) for e in (2, 3))
    wanted = StateTarget(v(4), 0, 2, sources, deltas)
    assert route([v(2)], wanted) is None, "the delta of epoch 3 lacks the groups of the snapshot at 3"
    assert route([v(3)], wanted) == Route(v(3), deltas[1:])


def test_a_target_with_a_hole_is_refused(tmp_path: Path) -> None:
    for deltas in (chain(3)[1:], (chain(3)[0], chain(3)[2]), chain(2)):
        with pytest.raises(AssertionError):
            opened(tmp_path, StateTarget(v(3), 0, 1, (), deltas))


# Killed, at any moment


def test_sigkill_at_any_moment_leaves_a_whole_epoch_and_a_true_marker(tmp_path: Path) -> None:
    chance = random.Random(7)
    reached = 0
    for _ in range(25):

        def work(pipe: Connection, first: int = reached) -> None:
            state = opened(tmp_path, target(first, committed=max(0, first - 3)))
            pipe.send(first)
            for epoch in range(first + 1, first + 10_000):
                state.apply(state.version, v(epoch), counted(epoch), max(0, epoch - 3))
                pipe.send(epoch)

        with child(work) as (process, pipe):
            for _ in range(chance.randrange(1, 12)):
                reached = heard(pipe)
            process.kill()
            process.join(DEADLINE_S)
            while pipe.poll():
                try:
                    reached = pipe.recv()
                except EOFError:
                    break
        attached = open_state_as_is(tmp_path)
        assert attached.version.epoch in (reached, reached + 1), "none lost, at most the one under way came"
        assert values(attached) == expected(attached.version.epoch)
        attached.close()
        state = opened(tmp_path, target(reached, committed=max(0, reached - 3)))
        assert values(state) == expected(reached)
        state.close()
    assert len(generations_in(tmp_path)) == 1, "nothing was rebuilt: undo and marker were enough"


def open_state_as_is(directory: Path) -> ShardState:
    state = attach_state(directory, "job")
    assert state is not None
    return state


def test_sigkill_while_building_leaves_nothing_that_is_opened_or_kept(tmp_path: Path) -> None:
    def work(pipe: Connection) -> None:
        def load() -> Entries:
            pipe.send("building")
            signal.pause()
            raise AssertionError("woken up")

        opened(tmp_path, StateTarget(v(1), 0, 1, (), (DeltaStep(v(1), EMPTY_VERSION, load),)))

    with child(work) as (process, pipe):
        assert heard(pipe) == "building"
        assert [name[:5] for name in generations_in(tmp_path)] == [".new-"]
        process.kill()
        process.join(DEADLINE_S)
    assert values(opened(tmp_path, target(1))) == expected(1)
    assert generations_in(tmp_path) == ["g00000001"]


def test_a_half_made_copy_of_the_base_is_thrown_away_and_made_again(tmp_path: Path) -> None:
    base = written_snapshot(tmp_path)

    def work(pipe: Connection) -> None:
        def stuck(source: SnapshotSource, file: int, to: Path, stop: object = None) -> None:
            to.write_bytes(b"half")
            pipe.send("copying")
            signal.pause()

        snapshot_file.copy_checked = stuck
        opened(tmp_path / "shard", StateTarget(v(1), 0, 1, (base,), (), 1)).verify_base()
        signal.pause()

    with child(work) as (process, pipe):
        assert heard(pipe) == "copying"
        process.kill()
        process.join(DEADLINE_S)
    state = opened(tmp_path / "shard", StateTarget(v(1), 0, 1, (base,), (), 1))
    assert values(state) == {b"1"}
    wait_until(lambda: _copied(tmp_path / "shard"), "the copy")
    promoted = opened(tmp_path / "shard", StateTarget(v(1), 0, 1, (base,), (), 1))
    state.close()
    assert values(promoted) == {b"1"}
    assert values(opened(tmp_path / "shard", StateTarget(v(1), 0, 1, (base,), (), 1))) == {b"1"}
    assert generations_in(tmp_path / "shard") == ["g00000002"]
    assert not list((tmp_path / "shard/g00000002").glob(f"{snapshot_file.COPY}*"))


# Twins and zombies


def twins(directory: Path, epochs: int) -> Version:
    """Two processes run the same epochs of the same shard at once, each starting over when it is stale."""

    def work(pipe: Connection, name: str) -> None:
        for epoch in range(1, epochs + 1):
            while True:
                try:
                    state = opened(directory, target(epoch - 1, committed=max(0, epoch - 2)))
                    assert values(state) == expected(epoch - 1), f"{name} at epoch {epoch - 1}"
                    state.apply(state.version, v(epoch, name), counted(epoch), max(0, epoch - 2))
                    state.close()
                    break
                except StaleWorkingState:
                    continue
        pipe.send("done")

    with (
        child(lambda pipe: work(pipe, "one")) as (first, one),
        child(lambda pipe: work(pipe, "two")) as (second, two),
    ):
        assert (heard(one), heard(two)) == ("done", "done")
        first.join(DEADLINE_S)
        second.join(DEADLINE_S)
    left = open_state_as_is(directory)
    assert values(left) == expected(left.version.epoch)
    return left.version


def test_twins_may_disturb_but_never_mislead_each_other(tmp_path: Path) -> None:
    assert twins(tmp_path, epochs=15).epoch in (14, 15)


def zombie_story(directory: Path) -> None:
    """A process falls asleep before it applies epoch 2; others go on to epoch 4; then it wakes up."""

    def work(pipe: Connection) -> None:
        state = opened(directory, target(1))
        pipe.send("asleep")
        pipe.recv()
        try:
            state.apply(v(1), v(2, "zombie"), [(KEYS[0], b"zombie")], 0)
            pipe.send("applied")
        except StaleWorkingState:
            pipe.send("refused")

    with child(work) as (_, pipe):
        assert heard(pipe) == "asleep"
        state = opened(directory, target(1))
        for epoch in (2, 3, 4):
            state.apply(v(epoch - 1), v(epoch), counted(epoch), epoch - 1)
        pipe.send("wake up")
        answer = heard(pipe)
    assert answer == "refused"
    assert values(state) == expected(4)


def test_a_zombie_cannot_overwrite_its_successor(tmp_path: Path) -> None:
    zombie_story(tmp_path)


def test_without_the_marker_check_a_zombie_overwrites_its_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "check_parent", lambda tx, at, parent: at)
    with pytest.raises(AssertionError, match="applied"):
        zombie_story(tmp_path)
    broken = open_state_as_is(tmp_path)
    assert broken.version == v(2, "zombie")
    assert values(broken) == {b"4", b"zombie"}, "a state that no history has"


def test_without_the_marker_check_reads_mix_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LmdbShard, "_check", lambda self, tx: None)
    ours, twin = opened(tmp_path), opened(tmp_path)
    twin.apply(EMPTY_VERSION, v(1), counted(1), 0)
    assert (ours.version, values(ours)) == (EMPTY_VERSION, {b"1"}), (
        "the state of epoch 1, under the name of epoch 0"
    )


def test_without_undo_a_dead_attempt_stays_in_the_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def story(directory: Path) -> bytes | None:
        state = opened(directory)
        state.apply(EMPTY_VERSION, v(1, "dead"), [(b"\x00\x00dead", b"1")], 0)
        return opened(directory, target(1)).get(b"\x00\x00dead")

    assert story(tmp_path / "whole") is None
    monkeypatch.setattr(database, "unpack_undo", lambda data: [])
    assert story(tmp_path / "broken") == b"1"


# Stopped


def test_a_process_stopped_with_the_lock_held_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(pipe: Connection) -> None:
        state = opened(tmp_path, target(1))

        def stop_inside(tx: object, committed: int) -> None:
            os.kill(os.getpid(), signal.SIGSTOP)

        database._drop_undo = stop_inside
        try:
            state.apply(v(1), v(2, "stopped"), [(KEYS[0], b"stopped")], 0)
            pipe.send(state.version)
        except StaleWorkingState:
            pipe.send("refused")
        assert state.get(KEYS[0]) == b"stopped"
        state.close()
        again = opened(tmp_path, target(3, committed=2))
        pipe.send(values(again))

    with child(work) as (process, pipe):
        wait_until(lambda: is_stopped(process.pid), "the child to stop in its transaction")
        monkeypatch.setattr(directories, "LOCK_TIMEOUT_S", 0.1)
        state = opened(tmp_path, target(1))
        assert values(state) == expected(1)
        for epoch in (2, 3):
            state.apply(v(epoch - 1), v(epoch), counted(epoch), epoch - 1)
        assert generations_in(tmp_path) == ["g00000001", "g00000002"], "what the stopped one uses is kept"
        os.kill(process.pid, signal.SIGCONT)
        assert heard(pipe) == v(2, "stopped"), "it goes on in its own files, unharmed and harmless"
        assert heard(pipe) == expected(3), "and finds the others at its next opening"
        assert (state.version, values(state)) == (v(3), expected(3))
        process.join(DEADLINE_S)
    state.close()
    assert values(opened(tmp_path, target(3, committed=2))) == expected(3)
    assert generations_in(tmp_path) == ["g00000002"]


def test_apply_gives_up_on_a_lock_that_stays_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directories, "LOCK_TIMEOUT_S", 0.05)
    state = opened(tmp_path)
    with open(tmp_path / "g00000001/lock", "w") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with pytest.raises(StaleWorkingState, match="stayed locked"):
            state.apply(EMPTY_VERSION, v(1), counted(1), 0)
        elsewhere = opened(tmp_path)
        elsewhere.apply(EMPTY_VERSION, v(1), counted(1), 0)
    assert values(elsewhere) == expected(1)
    assert generations_in(tmp_path) == ["g00000001", "g00000002"]


# Files that are not to be trusted


def reopened_elsewhere(directory: Path, wanted: StateTarget) -> set[bytes | None]:
    """What a fresh process finds."""
    with child(lambda pipe: pipe.send(values(opened(directory, wanted)))) as (_, pipe):
        found: set[bytes | None] = heard(pipe)
        return found


def test_files_of_another_boot_are_thrown_away(tmp_path: Path) -> None:
    opened(tmp_path, target(1)).close()

    def work(pipe: Connection) -> None:
        tables.boot_id = lambda: "another boot"  # type: ignore[assignment]
        deltas = (DeltaStep(v(1), EMPTY_VERSION, lambda: counted(5)),)
        pipe.send(values(opened(tmp_path, StateTarget(v(1), 0, 1, (), deltas))))

    with child(work) as (_, pipe):
        assert heard(pipe) == expected(5), "rebuilt from the delta, not taken from the files"


@pytest.mark.parametrize("damage", [b"", b"garbage" * 4096])
def test_files_that_lmdb_cannot_read_are_thrown_away(tmp_path: Path, damage: bytes) -> None:
    with child(lambda pipe: pipe.send(values(opened(tmp_path, target(1))))) as (_, pipe):
        assert heard(pipe) == expected(1)
    (tmp_path / "g00000001/data.mdb").write_bytes(damage)
    assert reopened_elsewhere(tmp_path, target(1)) == expected(1)


def test_a_directory_removed_under_us_is_rebuilt(tmp_path: Path) -> None:
    opened(tmp_path / "shard", target(1)).close()
    shutil.rmtree(tmp_path / "shard")
    assert values(opened(tmp_path / "shard", target(1))) == expected(1)


def test_a_base_deleted_by_retention_serves_who_has_it_open_and_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = written_snapshot(tmp_path)
    monkeypatch.setattr(snapshot_file.BaseCopier, "_copy", lambda self: None)
    lazy = opened(tmp_path / "shard", StateTarget(v(1), 0, 1, (base,), (), 1))
    base.path.unlink()
    assert values(lazy) == {b"1"}
    with child(lambda pipe: pipe.send(_error_of(tmp_path / "shard", base))) as (_, pipe):
        assert heard(pipe) == "ObjectMissing"
    assert reopened_elsewhere(tmp_path / "shard", target(2)) == expected(2), "a newer target needs no base"
    with pytest.raises(StaleWorkingState, match="superseded"):
        lazy.snapshot(tmp_path / "late")


def _error_of(directory: Path, base: SnapshotSource) -> str:
    try:
        opened(directory, StateTarget(v(1), 0, 1, (base,), (), 1))
    except ObjectMissing as error:
        return type(error).__name__
    return "none"


def test_a_lazy_restore_ends_by_itself_and_then_needs_no_base(tmp_path: Path) -> None:
    base = written_snapshot(tmp_path)
    wanted = StateTarget(v(1), 0, 1, (base,), (), 1)
    state = opened(tmp_path / "shard", wanted)
    state.apply(v(1), v(2), [(KEYS[0], None), (KEYS[1], b"2")], 1)
    wait_until(lambda: _copied(tmp_path / "shard"), "the copy")
    state.apply(v(2), v(3), [(KEYS[2], b"3")], 1)
    base.path.unlink()
    state.close()
    assert opened(tmp_path / "shard", wanted).get_many(KEYS[:4]) == [b"1"] * 4, "undo outlives the merge"
    assert generations_in(tmp_path / "shard") == ["g00000002"]


def _copied(directory: Path) -> bool:
    return (directory / "g00000001" / snapshot_file.COPY).exists() or (directory / "g00000002").exists()


# Damage


def damaged_after_first_chunk(tmp_path: Path) -> SnapshotSource:
    base = written_snapshot(tmp_path, value=b"v" * 1_500, count=6_000)
    data = bytearray(base.path.read_bytes())
    at = data.index(b"v" * 1_500, base.chunk_bytes + 8_192)
    data[at : at + 1_500] = b"w" * 1_500
    base.path.write_bytes(data)
    return base


def test_who_did_not_begin_an_unchecked_restore_checks_before_reading(tmp_path: Path) -> None:
    base = damaged_after_first_chunk(tmp_path)
    wanted = StateTarget(v(1), 0, 1, (base,), (), 1)

    def begins(pipe: Connection) -> None:
        snapshot_file.BaseCopier._run = lambda self: threading.Event().wait()  # type: ignore[assignment]
        opened(tmp_path / "shard", wanted)
        pipe.send("open")

    with child(begins) as (process, pipe):
        assert heard(pipe) == "open"
        process.kill()
        process.join(DEADLINE_S)
    with pytest.raises(CorruptionError, match="chunk 1 "):
        opened(tmp_path / "shard", wanted)


def test_without_chunk_checksums_damage_reaches_the_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = damaged_after_first_chunk(tmp_path)
    wanted = StateTarget(v(1), 0, 1, (base,), (), 1)
    with pytest.raises(CorruptionError):
        opened(tmp_path / "checked", wanted).verify_base()
    monkeypatch.setattr(snapshot_file, "check_chunk", lambda source, index, data: None)
    unchecked = opened(tmp_path / "unchecked", wanted)
    unchecked.verify_base()
    assert b"w" * 1_500 in dict(unchecked.scan(b"")).values()


# The disk and the process


def test_a_full_disk_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = opened(tmp_path)
    monkeypatch.setattr(directories, "DISK_RESERVE_BYTES", 1 << 60)
    with pytest.raises(StorageError, match=r"disk full: .* nothing was written"):
        state.apply(EMPTY_VERSION, v(1), counted(1), 0)
    assert (state.version, values(state)) == (EMPTY_VERSION, {None})


def test_a_state_larger_than_its_map_grows_in_every_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lmdb_store, "MAP_BYTES", 1 << 20)
    monkeypatch.setattr("holdfast.state.local.lmdb_backend.MAP_BYTES", 1 << 20)
    big: Entries = [(key, b"b" * 20_000) for key in KEYS]

    def work(pipe: Connection) -> None:
        state = opened(tmp_path, target(1))
        pipe.send("open")
        pipe.recv()
        twin = opened(tmp_path, StateTarget(v(2), 0, 1, (), (*chain(1), DeltaStep(v(2), v(1), list))))
        pipe.send(values(twin) == {b"b" * 20_000})
        state.close()

    with child(work) as (_, pipe):
        assert heard(pipe) == "open"
        state = opened(tmp_path, target(1))
        state.apply(v(1), v(2), big, 0)
        pipe.send("grown")
        assert heard(pipe) is True
    assert values(state) == {b"b" * 20_000}


def test_a_forked_child_opens_files_of_its_own(tmp_path: Path) -> None:
    parent = opened(tmp_path, target(1))

    def work(pipe: Connection) -> None:
        state = opened(tmp_path, target(1))
        state.apply(v(1), v(2), counted(2), 0)
        pipe.send(values(state))

    with child(work) as (process, pipe):
        assert heard(pipe) == expected(2)
        process.join(DEADLINE_S)
        assert process.exitcode == 0
    with pytest.raises(StaleWorkingState):
        parent.get(KEYS[0])
    assert values(opened(tmp_path, target(1))) == expected(1)
