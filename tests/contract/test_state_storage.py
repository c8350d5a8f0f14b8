"""The contract of storages for states of single keys: in files, and as a user writes one."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from examples.saved_keys import SqliteStates
from holdfast.errors import CorruptionError, StorageError
from holdfast.storage.key_saves import files
from holdfast.storage.key_saves.contract import StateStorage
from holdfast.storage.key_saves.files import FileStateStorage
from tests.contract.state_storage_suite import ANN, StateStorageContract, all_saves, save_of


class TestFiles(StateStorageContract):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> StateStorage:
        return FileStateStorage(tmp_path / "states")


class TestOneThatAUserWrites(StateStorageContract):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> StateStorage:
        return SqliteStates(str(tmp_path / "states.db"))


def test_the_one_that_a_user_writes_has_twenty_lines_and_is_the_one_of_the_how_to() -> None:
    root = Path(__file__).parents[2]
    example = (root / "examples" / "saved_keys.py").read_text()
    code = example[: example.index("class Visits")].rstrip()
    assert f"```python\n{code}\n```" in (root / "docs" / "how-to" / "uncoordinated.md").read_text()
    lines = [line for line in code[code.index("class SqliteStates") :].splitlines() if line]
    assert len(lines) <= 20


def test_a_file_is_complete_and_durable_before_it_takes_the_place_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S4 deleted the old file and wrote the new one after: a crash in between lost both."""
    storage = FileStateStorage(tmp_path)
    storage.save(ANN, save_of(1))
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.stat(fd).st_ino))

    def dies(draft: str, target: str) -> None:
        assert os.stat(draft).st_ino in synced, "not durable yet"
        raise OSError("the power is gone")

    monkeypatch.setattr(os, "replace", dies)
    with pytest.raises(StorageError):
        storage.save(ANN, save_of(2))
    assert storage.fetch(ANN) == save_of(1)


def test_a_file_that_finds_no_room_does_not_take_the_place_of_the_one_before(tmp_path: Path) -> None:
    """A write that is cut short is no error of the write: only the next one is told."""
    storage = FileStateStorage(tmp_path)
    storage.save(ANN, save_of(1))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with pytest.raises(StorageError):
            storage.save(ANN, save_of(2, b"x" * 100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert storage.fetch(ANN) == save_of(1)


KILLED = """
import sys
from holdfast.storage.key_saves.files import FileStateStorage
from tests.contract.state_storage_suite import ANN, save_of
storage = FileStateStorage(sys.argv[1])
for epoch in range(1, 1_000_000):
    storage.save(ANN, save_of(epoch, b"x" * 100_000))
    print(epoch, flush=True)
"""


def test_a_process_killed_while_it_saves_leaves_its_last_durable_save_or_a_later_one(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)])}
    for _ in range(3):
        storage = FileStateStorage(tmp_path / str(time.monotonic_ns()))
        with subprocess.Popen(
            [sys.executable, "-c", KILLED, str(storage.root)], stdout=subprocess.PIPE, env=environment
        ) as saving:
            assert saving.stdout is not None
            told = [int(saving.stdout.readline()) for _ in range(20)][-1]
            saving.send_signal(signal.SIGKILL)
            told = max([told, *(int(line) for line in saving.stdout if line.endswith(b"\n"))])
        found = storage.fetch(ANN)
        assert found in (save_of(told, b"x" * 100_000), save_of(told + 1, b"x" * 100_000))


def test_a_file_of_another_key_is_refused(tmp_path: Path) -> None:
    storage = FileStateStorage(tmp_path)
    storage.save(ANN, save_of(1))
    path = Path(storage._path(ANN))
    path.write_bytes(b"\x00\x00\x00\x03bob" + save_of(1))
    with pytest.raises(CorruptionError, match="does not hold the save of op/"):
        storage.fetch(ANN)


def test_an_unreadable_directory_is_an_error_and_never_an_empty_answer(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        FileStateStorage(tmp_path / "file").fetch(ANN)


def test_all_saves_are_listed(tmp_path: Path) -> None:
    storage = FileStateStorage(tmp_path)
    storage.save(ANN, save_of(4))
    assert list(all_saves(storage, "op")) == [(ANN, save_of(4))]


def test_what_a_killed_process_left_half_written_is_removed_and_never_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = FileStateStorage(tmp_path)
    storage.save(ANN, save_of(1))
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left = Path(storage._path(ANN)).with_name(f"{socket.gethostname()}-{dead.pid}-token0.draft")
    left.write_bytes(b"half")
    assert list(storage.keys("op")) == [ANN]
    monkeypatch.setattr(files, "_swept", set())
    storage.save(ANN, save_of(2))
    assert not left.exists()
    assert storage.fetch(ANN) == save_of(2)


def test_a_relative_directory_is_the_one_of_who_declares_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert FileStateStorage("states").root == str(tmp_path / "states")
