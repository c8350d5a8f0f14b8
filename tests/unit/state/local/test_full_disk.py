"""A disk that fills up under working state is an error that names it; it neither kills nor damages.

In processes of their own: what these tests guard against is a signal that kills the process.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from holdfast.errors import StorageError
from holdfast.state.contract import EMPTY_VERSION, DeltaStep, Entries, ShardState, StateTarget, Version
from holdfast.state.local import directories
from holdfast.state.local.backends import open_state

DISK_BYTES = 80 << 20
"""More than the reserve that working state leaves free, so that a small change is begun."""
FIRST = Version(1, 1, "a")
SMALL: Entries = [(b"\x00\x01small", b"kept")]
LARGE: Entries = [(b"\x00\x02%02d" % number, bytes(10 << 20)) for number in range(12)]
SECONDS_MAX = 120
_fork = multiprocessing.get_context("fork")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system, where this user may mount one."""
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small disk needs root")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def told_by(work: Callable[[], str]) -> str:
    """What `work` returns in a process of its own, or how that process ended."""

    def run(pipe: Connection) -> None:
        pipe.send(work())

    ours, theirs = _fork.Pipe()
    process = _fork.Process(target=run, args=(theirs,))
    process.start()
    theirs.close()
    process.join(SECONDS_MAX)
    assert process.exitcode == 0, f"it ended with {process.exitcode}"
    return str(ours.recv())


def started(directory: Path) -> ShardState:
    steps = (DeltaStep(FIRST, EMPTY_VERSION, lambda: SMALL),)
    return open_state(directory, "job", StateTarget(FIRST, 0, 128, (), steps, 0))


def refused(state: ShardState) -> str:
    """Change more than fits; the refusal. All is as it was, and a change that fits is made."""
    with pytest.raises(StorageError) as error:
        state.apply(FIRST, Version(2, 1, "a"), LARGE, 0)
    assert (state.version, list(state.scan(b""))) == (FIRST, SMALL)
    state.apply(FIRST, Version(2, 1, "a"), LARGE[:1], 0)
    assert list(state.scan(b"")) == SMALL + LARGE[:1]
    return str(error.value)


def test_values_that_do_not_fit_on_the_disk_are_refused(small_disk: Path) -> None:
    text = told_by(lambda: refused(started(small_disk / "shard")))
    assert text.startswith(f"disk full: working state in {small_disk}/shard/g0000000")
    assert "nothing was written; free space there" in text


def test_values_beyond_the_limit_of_a_file_are_refused(tmp_path: Path) -> None:
    """The same where nothing can be mounted."""

    def work() -> str:
        resource.setrlimit(resource.RLIMIT_FSIZE, (DISK_BYTES, DISK_BYTES))
        return refused(started(tmp_path / "shard"))

    assert "nothing was written; free space there or raise the quota or file size limit" in told_by(work)


def test_a_refused_change_gives_back_what_it_took(small_disk: Path) -> None:
    before = directories.free_bytes(small_disk)
    told_by(lambda: refused(started(small_disk / "shard")))
    assert before - directories.free_bytes(small_disk) < 15 << 20


def test_a_disk_that_is_full_to_the_last_byte_is_told_at_opening(small_disk: Path) -> None:
    """LMDB changes its lock file through a map: a page without room there kills too."""
    shard = small_disk / "shard"
    assert told_by(lambda: str(started(shard).version)) == str(FIRST)
    (shard / "g00000001/data.mdb-lock").unlink()
    with open(small_disk / "filler", "wb", buffering=0) as filler:
        while room := directories.free_bytes(small_disk):
            os.posix_fallocate(filler.fileno(), filler.seek(0, os.SEEK_END), room)

    def work() -> str:
        with pytest.raises(StorageError) as error:
            started(shard)
        return str(error.value)

    assert told_by(work).startswith("disk full: working state in ")
    (small_disk / "filler").unlink()
    assert told_by(lambda: str(list(started(shard).scan(b"")))) == str(SMALL)


def test_a_state_that_cannot_be_built_leaves_its_room_free(small_disk: Path) -> None:
    """The deltas fit one by one and not together: what was begun is removed."""
    before = directories.free_bytes(small_disk)

    def work() -> str:
        versions = [EMPTY_VERSION, FIRST, *(Version(epoch, 1, "a") for epoch in range(2, 14))]
        changes = [SMALL, *([entry] for entry in LARGE)]
        steps = tuple(
            DeltaStep(version, parent, lambda entries=entries: entries)  # type: ignore[misc]
            for parent, version, entries in zip(versions, versions[1:], changes, strict=False)
        )
        with pytest.raises(StorageError) as error:
            open_state(small_disk / "shard", "job", StateTarget(steps[-1].version, 0, 128, (), steps, 13))
        return str(error.value)

    assert told_by(work).startswith("disk full: working state in ")
    assert before - directories.free_bytes(small_disk) < 1 << 20


def test_a_snapshot_that_does_not_fit_leaves_nothing(tmp_path: Path, small_disk: Path) -> None:
    def work() -> str:
        state = started(tmp_path / "shard")
        state.apply(FIRST, Version(2, 1, "a"), LARGE, 0)
        with pytest.raises(StorageError) as error:
            state.snapshot(small_disk / "snapshot")
        return str(error.value)

    assert "cannot write a snapshot" in told_by(work)
    assert list(small_disk.iterdir()) == []
