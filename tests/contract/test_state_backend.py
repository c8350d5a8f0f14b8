"""What every working-state backend promises. A backend joins by its name in BACKENDS."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.errors import CorruptionError, DefinitionError, ObjectMissing, RestoreError, StorageError
from holdfast.state.contract import (
    EMPTY_VERSION,
    DeltaStep,
    Entries,
    ShardState,
    SnapshotInfo,
    SnapshotSource,
    StaleWorkingState,
    StateTarget,
    Version,
)
from holdfast.state.local import directories, tables
from holdfast.state.local.backends import MEMORY_DIR, attach_state, backend_named, open_state, remove_others
from holdfast.state.local.snapshot_reader import look_up, read_snapshot

BACKENDS = ["lmdb", "memory", "rocksdb"]
GROUPS = 8
START = StateTarget(EMPTY_VERSION, 0, GROUPS)
Model = dict[bytes, bytes]
Open = Callable[..., ShardState]


def key(number: int) -> bytes:
    return (number % GROUPS).to_bytes(2, "big") + b"\x00" + number.to_bytes(8, "big")


def v(epoch: int, result: str = "a") -> Version:
    return Version(epoch, 1, result)


def puts(*numbers: int, value: bytes = b"x") -> Entries:
    return sorted((key(number), value) for number in numbers)


def source(path: Path, info: SnapshotInfo, backend: str, first: int = 0, end: int = GROUPS) -> SnapshotSource:
    kind = backend_named(backend).snapshots
    return SnapshotSource(info.version, first, end, path, info.length, info.chunk_bytes, info.chunks, kind)


def step(epoch: int, entries: Entries, result: str = "a", parent: Version | None = None) -> DeltaStep:
    before = parent if parent is not None else (v(epoch - 1) if epoch > 1 else EMPTY_VERSION)
    return DeltaStep(v(epoch, result), before, lambda: entries)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def roots(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Where shards keep working state: for "memory" really in memory, where there is such a file system."""
    memory = Path(tempfile.mkdtemp(prefix="holdfast-test-", dir=MEMORY_DIR if MEMORY_DIR.is_dir() else None))
    yield lambda backend: memory if backend == "memory" else tmp_path
    # A shard may still be finishing a copy in the background.
    while memory.exists():
        shutil.rmtree(memory, ignore_errors=True)


@pytest.fixture
def opened(backend: str, roots: Callable[[str], Path]) -> Open:
    def open_it(
        target: StateTarget = START,
        name: str = "shard",
        identity: str = "job/op/0-7",
        using: str = backend,
    ) -> ShardState:
        return open_state(roots(using) / name, identity, target, backend=using)

    return open_it


def entries_of(state: ShardState) -> Model:
    return dict(state.scan(b""))


def test_reads_are_aligned_with_the_keys_asked_for(opened: Open) -> None:
    state = opened()
    state.apply(EMPTY_VERSION, v(1), [(key(1), b"one"), (key(2), b"")], 0)
    assert state.get_many([key(2), key(9), key(1), key(2)]) == [b"", None, b"one", b""]
    assert (state.get(key(1)), state.get(key(3))) == (b"one", None)
    assert (state.version, len(entries_of(state))) == (v(1), 2)
    assert state.size_bytes() > 0


def test_deletions_delete_and_deleting_nothing_is_fine(opened: Open) -> None:
    state = opened()
    state.apply(EMPTY_VERSION, v(1), puts(1, 2), 0)
    state.apply(v(1), v(2), [(key(1), None), (key(3), None)], 0)
    assert entries_of(state) == {key(2): b"x"}


def test_scan_gives_one_prefix_in_key_order_over_many_pages(opened: Open) -> None:
    state = opened()
    state.apply(EMPTY_VERSION, v(1), puts(*range(50_000)), 0)
    found = [found for found, _ in state.scan(b"\x00\x03")]
    assert found == sorted(key(number) for number in range(50_000) if number % GROUPS == 3)


def test_apply_on_another_parent_is_refused_and_changes_nothing(opened: Open) -> None:
    state = opened()
    state.apply(EMPTY_VERSION, v(1), puts(1), 0)
    state.apply(v(1), v(2), puts(2), 1)
    with pytest.raises(StaleWorkingState):
        state.apply(EMPTY_VERSION, v(1, "zombie"), puts(7), 0)
    with pytest.raises(StaleWorkingState):
        state.apply(v(5), v(6), puts(7), 0)
    assert (state.version, entries_of(state)) == (v(2), dict.fromkeys([key(1), key(2)], b"x"))


def test_apply_of_the_version_already_there_changes_nothing(opened: Open) -> None:
    state = opened()
    state.apply(EMPTY_VERSION, v(1), puts(1), 0)
    state.apply(EMPTY_VERSION, v(1), puts(1, value=b"again"), 0)
    assert state.get(key(1)) == b"x"


def test_the_result_of_a_twin_is_undone_before_ours_is_applied(opened: Open) -> None:
    twin, ours = opened(), opened()
    twin.apply(EMPTY_VERSION, v(1, "twin"), [(key(1), b"twin"), (key(2), b"twin")], 0)
    ours.apply(EMPTY_VERSION, v(1, "ours"), [(key(1), b"ours")], 0)
    assert entries_of(ours) == {key(1): b"ours"}


def test_a_read_never_shows_the_version_of_someone_else(opened: Open) -> None:
    twin, ours = opened(), opened()
    scan = ours.scan(b"")
    twin.apply(EMPTY_VERSION, v(1), puts(1), 0)
    reads = (lambda: ours.get(key(1)), lambda: ours.get_many([key(1)]), lambda: next(scan))
    for read in reads:
        with pytest.raises(StaleWorkingState):
            read()


def test_opening_catches_up_by_deltas_from_where_the_state_is(opened: Open) -> None:
    opened().apply(EMPTY_VERSION, v(1), puts(1), 0)

    def never() -> Entries:
        raise AssertionError("epoch 1 is there already")

    deltas = (DeltaStep(v(1), EMPTY_VERSION, never), step(2, puts(2)), step(3, [(key(1), None)]))
    state = opened(StateTarget(v(3), 0, GROUPS, (), deltas, committed=3))
    assert (state.version, entries_of(state)) == (v(3), {key(2): b"x"})


def test_opening_at_an_older_version_undoes_what_was_never_committed(opened: Open) -> None:
    state = opened()
    state.apply(EMPTY_VERSION, v(1), puts(1, 2), 0)
    state.apply(v(1), v(2), [(key(1), None), (key(2), b"new"), (key(3), b"new")], 0)
    state.apply(v(2), v(3), [(key(3), None), (key(4), b"new")], 1)

    def never() -> Entries:
        raise AssertionError("undo needs no delta")

    back = opened(StateTarget(v(1), 0, GROUPS, (), (DeltaStep(v(1), EMPTY_VERSION, never),), committed=1))
    assert entries_of(back) == dict.fromkeys([key(1), key(2)], b"x")


def test_a_version_that_undo_no_longer_reaches_is_rebuilt(opened: Open) -> None:
    state = opened()
    state.apply(EMPTY_VERSION, v(1), puts(1), 0)
    state.apply(v(1), v(2), puts(2), 2)
    back = opened(StateTarget(v(1), 0, GROUPS, (), (step(1, puts(1)),), committed=1))
    assert entries_of(back) == {key(1): b"x"}


def test_another_result_of_the_same_epoch_is_never_taken_for_ours(opened: Open) -> None:
    opened().apply(EMPTY_VERSION, v(1, "lost"), puts(1), 0)
    target = StateTarget(v(1, "chosen"), 0, GROUPS, (), (step(1, puts(2), "chosen"),), committed=1)
    assert entries_of(opened(target)) == {key(2): b"x"}


def test_state_of_another_identity_is_thrown_away(opened: Open) -> None:
    opened().apply(EMPTY_VERSION, v(1), puts(1), 0)
    assert entries_of(opened(identity="another job")) == {}


def test_attaching_gives_what_is_there_and_nothing_of_others(
    opened: Open, backend: str, roots: Callable[[str], Path]
) -> None:
    directory = roots(backend) / "shard"
    assert attach_state(directory, "job/op/0-7", backend=backend) is None
    opened().apply(EMPTY_VERSION, v(1), puts(1), 0)
    attached = attach_state(directory, "job/op/0-7", backend=backend)
    assert attached is not None
    assert (attached.version, entries_of(attached)) == (v(1), {key(1): b"x"})
    assert attach_state(directory, "another job", backend=backend) is None


def test_a_snapshot_opened_elsewhere_shows_the_same_state(opened: Open, backend: str, tmp_path: Path) -> None:
    state = opened()
    state.apply(EMPTY_VERSION, v(1), puts(*range(9_000)), 0)
    info = state.snapshot(tmp_path / "snapshot")
    assert info.version == v(1)
    (tmp_path / "snapshot").chmod(0o444)
    before = (tmp_path / "snapshot").read_bytes()

    deltas = (step(2, sorted([(key(5), None), (key(6), b"new"), (key(9_999), b"new")])),)
    base = source(tmp_path / "snapshot", info, backend)
    target = StateTarget(v(2), 0, GROUPS, (base,), deltas, committed=1)
    lazy = opened(target, name="elsewhere")
    expected: dict[bytes, bytes | None] = dict(puts(*range(9_000)))
    expected.update({key(6): b"new", key(9_999): b"new"})
    del expected[key(5)]
    assert lazy.get_many([key(5), key(6), key(7), key(9_999)]) == [None, b"new", b"x", b"new"]
    assert entries_of(lazy) == expected
    lazy.verify_base()

    lazy.apply(v(2), v(3), [(key(5), b"back"), (key(7), None)], 1)
    again = lazy.snapshot(tmp_path / "again")
    expected[key(5)] = b"back"
    del expected[key(7)]
    third = source(tmp_path / "again", again, backend)
    whole = opened(StateTarget(v(3), 0, GROUPS, (third,), (), 3), name="third")
    assert entries_of(whole) == entries_of(lazy) == expected
    assert (tmp_path / "snapshot").read_bytes() == before

    start = StateTarget(v(1), 0, GROUPS, (base,), (), 1)
    undone = opened(start, name="elsewhere")
    assert entries_of(undone) == dict(puts(*range(9_000)))


def test_rescaling_takes_just_the_groups_of_the_new_shard(opened: Open, backend: str, tmp_path: Path) -> None:
    sources = []
    for name, first, end in (("low", 0, 4), ("high", 4, 8)):
        state = opened(StateTarget(EMPTY_VERSION, first, end), name=name, identity=name)
        state.apply(EMPTY_VERSION, v(1), [e for e in puts(*range(4_000)) if first <= e[0][1] < end], 0)
        path = tmp_path / f"{name}.snap"
        sources.append(source(path, state.snapshot(path), backend, first, end))
    target = StateTarget(v(1), 3, 6, tuple(reversed(sources)), (), 1)
    middle = opened(target, name="middle", identity="middle")
    middle.verify_base()
    assert entries_of(middle) == dict(e for e in puts(*range(4_000)) if 3 <= e[0][1] < 6)
    low = opened(StateTarget(v(1), 0, 2, tuple(sources), (), 1), name="part", identity="part")
    assert entries_of(low) == dict(e for e in puts(*range(4_000)) if e[0][1] < 2)


def test_a_damaged_chunk_is_found_before_results_count(opened: Open, backend: str, tmp_path: Path) -> None:
    """At the opening or by verify_base: whichever comes first, no result was given before."""
    target = _damaged_target(opened, backend, tmp_path / "snapshot")
    for _ in range(2):
        with pytest.raises(CorruptionError, match=r"snapshot is damaged in chunk 2 "):
            opened(target, name="elsewhere").verify_base()


def test_a_damaged_chunk_stops_rescaling(opened: Open, backend: str, tmp_path: Path) -> None:
    target = _damaged_target(opened, backend, tmp_path / "snapshot")
    with pytest.raises(CorruptionError, match=r"chunk 2 "):
        opened(StateTarget(target.version, 0, 2, target.snapshots, (), 1), name="elsewhere")


def test_a_truncated_snapshot_is_refused_at_once(opened: Open, backend: str, tmp_path: Path) -> None:
    state = opened()
    state.apply(EMPTY_VERSION, v(1), puts(*range(9_000)), 0)
    path = tmp_path / "snapshot"
    info = state.snapshot(path)
    path.write_bytes(path.read_bytes()[:-4096])
    with pytest.raises(CorruptionError, match="it was cut or changed"):
        opened(StateTarget(v(1), 0, GROUPS, (source(path, info, backend),), (), 1), name="elsewhere")


def test_a_snapshot_that_is_gone_is_named(opened: Open, backend: str, tmp_path: Path) -> None:
    info = opened().snapshot(tmp_path / "snapshot")
    (tmp_path / "snapshot").unlink()
    gone = source(tmp_path / "snapshot", info, backend)
    for first, end in ((0, GROUPS), (0, 2)):
        with pytest.raises(ObjectMissing, match="snapshot is gone"):
            opened(StateTarget(EMPTY_VERSION, first, end, (gone,), (), 1), name="elsewhere", identity="other")


def _damaged_target(opened: Open, backend: str, path: Path) -> StateTarget:
    state = opened()
    state.apply(EMPTY_VERSION, v(1), puts(*range(9_000), value=b"v" * 1_200), 0)
    info = state.snapshot(path)
    data = bytearray(path.read_bytes())
    data[2 * info.chunk_bytes + 2_000] ^= 1
    path.write_bytes(data)
    return StateTarget(v(1), 0, GROUPS, (source(path, info, backend),), (), 1)


def test_an_unknown_backend_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match="there is no state backend 'stone'; choose one of 'lmdb', "):
        open_state(tmp_path, "job", StateTarget(EMPTY_VERSION, 0, GROUPS), backend="stone")


@pytest.mark.parametrize("seed", range(6))
def test_any_history_of_epochs_undo_and_restores_matches_a_dictionary(
    opened: Open, backend: str, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    models: dict[Version, Model] = {EMPTY_VERSION: {}}
    chain: list[DeltaStep] = []
    snapshots: list[SnapshotSource] = []
    committed, state, results = 0, opened(), 0
    for number in range(80):
        at = chain[-1].version if chain else EMPTY_VERSION
        action = chance.choice(["apply", "apply", "apply", "commit", "rewind", "snapshot", "move"])
        if action == "apply":
            results += 1
            numbers = chance.sample(range(60), chance.randrange(12))
            entries: Entries = sorted(
                (key(n), None if chance.random() < 0.3 else b"%d" % chance.randrange(99)) for n in numbers
            )
            version = Version(at.epoch + 1, 1, str(results))
            if chance.random() < 0.5:
                state.get_many([key(n) for n in numbers])
            state.apply(at, version, entries, committed)
            after = {**models[at], **{k: value for k, value in entries if value is not None}}
            models[version] = {k: w for k, w in after.items() if (k, None) not in entries}
            chain.append(DeltaStep(version, at, lambda entries=entries: entries))  # type: ignore[misc]
        elif action == "commit":
            committed = at.epoch
        elif action == "rewind":
            chain = chain[: chance.randint(committed, len(chain))]
        elif action == "snapshot":
            path = tmp_path / f"snapshot-{number}"
            info = state.snapshot(path)
            if info.version.epoch <= committed:
                snapshots.append(source(path, info, backend))
        if action in ("rewind", "move"):
            target = chain[-1].version if chain else EMPTY_VERSION
            usable = [s for s in snapshots if s.version in models and s.version.epoch <= target.epoch]
            newest = usable[-1:] if chance.random() < 0.8 else []
            deltas = tuple(chain[newest[0].version.epoch :] if newest else chain)
            name = "shard" if action == "rewind" else f"shard-{chance.randrange(3)}"
            state = opened(StateTarget(target, 0, GROUPS, tuple(newest), deltas, committed), name=name)
        at = chain[-1].version if chain else EMPTY_VERSION
        assert (state.version, entries_of(state)) == (at, models[at]), f"seed {seed}, step {number}: {action}"


# Moving between backends


def _snapshotted(opened: Open, backend: str, path: Path, entries: Entries) -> SnapshotSource:
    state = opened(name="origin")
    state.apply(EMPTY_VERSION, v(1), entries, 0)
    info = state.snapshot(path)
    state.close()
    return source(path, info, backend)


@pytest.mark.parametrize("other", BACKENDS)
def test_a_snapshot_is_opened_by_every_backend(
    opened: Open, backend: str, other: str, tmp_path: Path
) -> None:
    entries = sorted([*puts(*range(9_000)), (key(9_000), b""), (key(9_001), b"long" * 50_000)])
    base = _snapshotted(opened, backend, tmp_path / "snapshot", entries)
    deltas = (step(2, sorted([(key(5), None), (key(6), b"new")])),)
    whole = opened(StateTarget(v(2), 0, GROUPS, (base,), deltas, 1), name="moved", using=other)
    expected = {k: value for k, value in {**dict(entries), key(6): b"new"}.items() if k != key(5)}
    whole.verify_base()
    assert (whole.version, entries_of(whole)) == (v(2), expected)
    cut = opened(StateTarget(v(1), 3, 5, (base,), (), 1), name="cut", identity="cut", using=other)
    assert entries_of(cut) == {k: value for k, value in entries if 3 <= k[1] < 5}


@pytest.mark.parametrize("other", BACKENDS)
def test_a_snapshot_is_converted_on_the_way(opened: Open, backend: str, other: str, tmp_path: Path) -> None:
    base = _snapshotted(opened, backend, tmp_path / "snapshot", puts(*range(9_000)))

    def convert(entries: Entries) -> Entries:
        return [(k, value + b"!") for k, value in entries if value is not None and k[-1] % 2]

    converted = replace(base, convert=convert)
    expected = {k: b"x!" for k, _ in puts(*range(9_000)) if k[-1] % 2}
    state = opened(StateTarget(v(1), 0, GROUPS, (converted,), (), 1), name="moved", using=other)
    assert entries_of(state) == expected
    narrow = StateTarget(v(1), 3, 5, (converted,), (), 1)
    cut = opened(narrow, name="cut", identity="cut", using=other)
    assert entries_of(cut) == {k: value for k, value in expected.items() if 3 <= k[1] < 5}


@pytest.mark.parametrize("other", BACKENDS)
def test_an_empty_state_has_a_snapshot_too(opened: Open, backend: str, other: str, tmp_path: Path) -> None:
    base = _snapshotted(opened, backend, tmp_path / "snapshot", [])
    state = opened(StateTarget(v(1), 0, GROUPS, (base,), (), 1), name="moved", using=other)
    state.verify_base()
    assert entries_of(state) == {}
    state.apply(v(1), v(2), puts(1), 1)
    assert entries_of(state) == {key(1): b"x"}


def test_snapshots_of_two_backends_make_one_state(opened: Open, tmp_path: Path) -> None:
    """After a move the snapshots of some key groups are still those of the backend before."""
    sources = []
    for name, first, end in (("lmdb", 0, 4), ("rocksdb", 4, 8)):
        state = opened(StateTarget(EMPTY_VERSION, first, end), name=name, identity=name, using=name)
        state.apply(EMPTY_VERSION, v(1), [e for e in puts(*range(4_000)) if first <= e[0][1] < end], 0)
        path = tmp_path / f"{name}.snap"
        sources.append(source(path, state.snapshot(path), name, first, end))
    both = opened(StateTarget(v(1), 2, 7, tuple(reversed(sources)), (), 1), name="both", identity="both")
    assert entries_of(both) == dict(e for e in puts(*range(4_000)) if 2 <= e[0][1] < 7)


def test_one_key_is_found_in_a_snapshot_without_opening_it(
    opened: Open, backend: str, tmp_path: Path
) -> None:
    base = _snapshotted(opened, backend, tmp_path / "snapshot", puts(*range(0, 90_000, 3)))
    wanted = [key(0), key(1), key(2_997), key(89_997), key(90_000), b"\x00", b"\xff\xff\xff"]
    assert look_up(base, wanted) == [b"x", None, b"x", b"x", None, None, None]
    found = list(read_snapshot(base, 2, 4))
    assert found == [e for e in puts(*range(0, 90_000, 3)) if 2 <= e[0][1] < 4]
    assert list(read_snapshot(base, GROUPS, 99)) == []
    with pytest.raises(RestoreError, match="format of backend 'stone', which this version does not know"):
        look_up(replace(base, backend="stone"), [key(0)])
    with pytest.raises(ObjectMissing):
        look_up(replace(base, path=tmp_path / "gone"), [key(0)])


def test_a_file_of_another_format_is_no_readable_snapshot(opened: Open, tmp_path: Path, backend: str) -> None:
    base = _snapshotted(opened, backend, tmp_path / "snapshot", puts(*range(100)))
    disguised = replace(base, backend="rocksdb" if base.backend == "lmdb" else "lmdb")
    with pytest.raises(CorruptionError, match="is no readable"):
        list(read_snapshot(disguised, 0, GROUPS))


# Epochs go on meanwhile


def test_a_snapshot_taken_while_epochs_are_applied_is_of_one_of_them(
    opened: Open, backend: str, roots: Callable[[str], Path], tmp_path: Path
) -> None:
    """Every entry holds the number of the last epoch: a mixture of two would show."""
    state, stop, applied = opened(), threading.Event(), threading.Semaphore(0)

    def apply_on() -> None:
        epoch = 0
        while not stop.is_set():
            before = v(epoch) if epoch else EMPTY_VERSION
            epoch += 1
            state.apply(before, v(epoch), puts(*range(3_000), value=b"%d" % epoch), epoch)
            applied.release()

    thread = threading.Thread(target=apply_on)
    thread.start()
    try:
        for number in range(5):
            assert applied.acquire(timeout=30), "no epoch was applied for 30 s"
            path = tmp_path / f"snapshot-{number}"
            snapshotter = attach_state(roots(backend) / "shard", "job/op/0-7", backend=backend)
            assert snapshotter is not None
            info = snapshotter.snapshot(path)
            snapshotter.close()
            found = dict(read_snapshot(source(path, info, backend), 0, GROUPS))
            assert set(found.values()) == {b"%d" % info.version.epoch}
            assert len(found) == 3_000
    finally:
        stop.set()
        thread.join(30)
    assert not thread.is_alive()


# The disk, the machine and the process


def test_a_full_disk_is_refused_before_anything_is_written(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = opened()
    state.apply(EMPTY_VERSION, v(1), puts(1), 0)
    monkeypatch.setattr(directories, "DISK_RESERVE_BYTES", 1 << 60)
    with pytest.raises(StorageError, match=r"disk full: .* nothing was written; .* use backend='lmdb'"):
        state.apply(v(1), v(2), puts(2), 0)
    assert (state.version, entries_of(state)) == (v(1), {key(1): b"x"})
    monkeypatch.undo()
    state.apply(v(1), v(2), puts(2), 0)
    assert entries_of(state) == dict(puts(1, 2))


def test_files_of_another_boot_are_thrown_away(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    opened().apply(EMPTY_VERSION, v(1), puts(1), 0)
    monkeypatch.setattr(tables, "boot_id", lambda: "another boot")
    rebuilt = opened(StateTarget(v(1), 0, GROUPS, (), (step(1, puts(2)),), 1))
    assert entries_of(rebuilt) == {key(2): b"x"}


def test_working_state_of_another_backend_is_never_taken_for_ours(opened: Open, roots: object) -> None:
    """The same directory: the user changed the backend and nothing else."""
    state = opened(name="shard", using="lmdb")
    state.apply(EMPTY_VERSION, v(1), puts(1), 0)
    state.close()
    for number, other in enumerate(["rocksdb", "lmdb", "rocksdb"], start=2):
        target = StateTarget(v(1), 0, GROUPS, (), (step(1, puts(number)),), 1)
        state = opened(target, name="shard", using=other)
        assert entries_of(state) == {key(number): b"x"}, "built anew"
        state.close()


def test_a_forked_child_does_no_harm_and_goes_on_or_is_told(opened: Open) -> None:
    """Spark forks its Python workers. RocksDB does not survive a fork: the child says so, at once."""
    parent = opened()
    parent.apply(EMPTY_VERSION, v(1), puts(1), 0)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            directories.LOCK_TIMEOUT_S = 0.1
            state = opened(StateTarget(v(1), 0, GROUPS, (), (step(1, puts(1)),), 1))
            code = 10 if entries_of(state) == {key(1): b"x"} else 1
        except StorageError as error:
            code = 20 if "does not survive a fork; start a new process" in str(error) else 1
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (10, 20), "wrong state, or another error"
    assert entries_of(parent) == {key(1): b"x"}
    parent.apply(v(1), v(2), puts(2), 1)
    assert entries_of(parent) == dict(puts(1, 2))


def test_shards_that_are_no_more_leave_nothing_behind(backend: str, roots: Callable[[str], Path]) -> None:
    parent = roots(backend) / "operator"
    first, second = (
        open_state(parent / name, name, StateTarget(EMPTY_VERSION, at, at + 4), backend=backend)
        for name, at in (("0-4", 0), ("4-8", 4))
    )
    first.apply(EMPTY_VERSION, v(1), puts(1, 2), 0)
    first.close()
    whole = open_state(parent / "0-8", "0-8", START, backend=backend)
    remove_others(parent, {"0-8"})
    assert sorted(path.name for path in parent.iterdir()) == ["0-8", "4-8"], "what is in use stays"
    second.apply(EMPTY_VERSION, v(1), puts(5), 0)
    second.close()
    remove_others(parent, {"0-8"})
    assert [path.name for path in parent.iterdir()] == ["0-8"]
    whole.apply(EMPTY_VERSION, v(1), puts(1, 2, 5), 0)
    whole.close()
    again = open_state(parent / "0-4", "0-4", StateTarget(EMPTY_VERSION, 0, 4), backend=backend)
    assert again.get_many([key(1)]) == [None]
    again.close()
