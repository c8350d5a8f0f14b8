from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.errors import ObjectMissing, StorageError
from holdfast.storage import draft_names
from holdfast.storage.contract import Put
from holdfast.storage.local_directory import OPEN_DIRECTORIES_MAX, LocalStorage

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

KILLED_WHILE_WRITING = """
import os, signal, sys
from holdfast.storage.local_directory import LocalStorage
storage = LocalStorage(sys.argv[1])
storage.put_new("a/before", b"1")
real = getattr(os, sys.argv[2])
def kill(*arguments, **options):
    if sys.argv[3] == "after":
        real(*arguments, **options)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(os, sys.argv[2], kill)
storage.put_new("a/during", b"x" * 100_000)
"""


@pytest.mark.parametrize(
    ("call", "when", "visible"),
    [
        ("write", "before", False),
        ("write", "after", False),
        ("fsync", "after", False),
        ("link", "before", False),
        ("link", "after", True),
    ],
)
def test_a_killed_writer_leaves_all_or_nothing_and_its_draft_is_swept(
    tmp_path: Path, call: str, when: str, visible: bool
) -> None:
    command = [sys.executable, "-c", KILLED_WHILE_WRITING, str(tmp_path), call, when]
    assert subprocess.run(command, env=ENVIRONMENT).returncode == -signal.SIGKILL
    assert len(os.listdir(tmp_path / ".tmp")) == 1
    storage = LocalStorage(tmp_path)
    assert os.listdir(tmp_path / ".tmp") == []
    assert [entry.name for entry in storage.list("")] == ["a/before"] + ["a/during"] * visible
    assert storage.put_new("a/during", b"y") is (Put.EXISTS if visible else Put.CREATED)


def test_only_drafts_of_this_hosts_dead_processes_are_swept(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    shed = tmp_path / ".tmp"
    shed.mkdir()
    host, _, _ = draft_names.new_name().rsplit("-", 2)
    kept = {
        draft_names.new_name(),
        f"{host}-{os.getppid()}-1",
        f"elsewhere-{dead.pid}-1",
        "what is this",
        f"{host}-9-9-9",
    }
    swept = {f"{host}-{dead.pid}-1", f"{host}-{os.getpid()}-0"}
    for name in kept | swept:
        (shed / name).write_bytes(b"")
    LocalStorage(tmp_path)
    assert set(os.listdir(shed)) == kept


def test_nothing_is_created_by_opening_and_looking(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "not" / "yet")
    assert storage.list("") == []
    assert not (tmp_path / "not").exists()


def test_a_write_goes_on_when_its_directory_was_removed_meanwhile(tmp_path: Path) -> None:
    one, other = LocalStorage(tmp_path), LocalStorage(tmp_path)
    one.put_new("data/7/a", b"1")
    other.delete(["data/7/a"])
    assert not (tmp_path / "data").exists()
    assert one.put_new("data/7/b", b"2") is Put.CREATED
    assert other.get("data/7/b") == b"2"


def test_a_write_goes_on_when_its_draft_was_swept_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, real, swept = LocalStorage(tmp_path), os.link, []

    def link(draft: str, *arguments: object, **options: object) -> None:
        if not swept:
            swept.append(draft)
            (tmp_path / ".tmp" / draft).unlink()
        real(draft, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "link", link)
    assert storage.put_new("a", b"1") is Put.CREATED
    assert swept


def test_many_directories_do_not_use_up_file_descriptors(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path, fsync=False)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(3 * OPEN_DIRECTORIES_MAX):
        storage.put_new(f"data/{number}/x", b"")
    assert len(os.listdir("/proc/self/fd")) <= before + OPEN_DIRECTORIES_MAX
    del storage
    assert len(os.listdir("/proc/self/fd")) == before


def test_put_file_copies_from_another_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage, made = LocalStorage(tmp_path / "store"), tmp_path / "made"
    made.write_bytes(b"far away")

    def link(*arguments: object, **options: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", link)
    storage.put_file("a/b", made)
    assert storage.get("a/b") == b"far away"
    assert not made.exists()


def test_put_file_of_nothing_says_so(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="there is no file"):
        LocalStorage(tmp_path).put_file("a", tmp_path / "gone")


@pytest.fixture
def small_disk(tmp_path: Path) -> object:
    """A real file system of one megabyte, where this user may mount one."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a small tmpfs needs root")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_is_said_and_nothing_is_visible(small_disk: Path) -> None:
    storage = LocalStorage(small_disk)
    storage.put_new("a/fits", bytes(500_000))
    for write in (storage.put_new, storage.put):
        with pytest.raises(StorageError, match=r"disk full: .*a/too-big, nothing was written; free space"):
            write("a/too-big", bytes(2_000_000))
    assert [entry.name for entry in storage.list("")] == ["a/fits"]
    assert os.listdir(small_disk / ".tmp") == []
    assert storage.put_new("a/small", bytes(100_000)) is Put.CREATED


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (errno.ENOSPC, "disk full"),
        (errno.EDQUOT, "disk full"),
        (errno.EFBIG, "file size limit"),
        (errno.EACCES, f"no permission.*user {os.getuid()}"),
        (errno.EROFS, "read-only"),
        (errno.EIO, "check the file system"),
    ],
)
def test_each_refusal_says_what_to_do_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, text: str
) -> None:
    storage = LocalStorage(tmp_path)

    def write(fd: int, data: memoryview) -> int:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        with pytest.raises(StorageError, match=text) as caught:
            storage.put_new("a/b", b"1")
    assert str(tmp_path / "a/b") in str(caught.value)
    assert "nothing was written" in str(caught.value)
    assert storage.list("") == []
    assert os.listdir(tmp_path / ".tmp") == []


NOBODY = 65_534
AS_NOBODY = """
import os, sys
from holdfast.errors import StorageError
from holdfast.storage.local_directory import LocalStorage
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[2]))
storage = LocalStorage(sys.argv[1])
for call in (lambda: storage.list(""), lambda: storage.get("a"), lambda: storage.put_new("b", b"1")):
    try:
        print("no error:", call())
    except StorageError as error:
        print(error)
"""


def test_a_root_without_permission_is_named() -> None:
    if os.getuid() != 0:
        pytest.skip("becoming another user needs root")
    # Not below tmp_path, which pytest closes to other users as a whole.
    with tempfile.TemporaryDirectory() as root:
        LocalStorage(root).put_new("a", b"1")
        command = [sys.executable, "-c", AS_NOBODY, root, str(NOBODY)]
        lines = subprocess.check_output(command, env=ENVIRONMENT, text=True).splitlines()
    assert [line.partition(f" {root}")[0] for line in lines] == ["cannot list", "cannot read", "cannot write"]
    assert all("no permission" in line and f"give user {NOBODY} access" in line for line in lines)


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    storage = LocalStorage(tmp_path / "file")
    for call in (
        lambda: storage.list(""),
        lambda: storage.list("commits/"),
        lambda: storage.put_new("a", b"1"),
    ):
        with pytest.raises(StorageError, match="directory"):
            call()


def test_a_name_below_an_object_is_refused(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.put_new("a", b"1")
    with pytest.raises(StorageError, match="a file is where a directory is needed"):
        storage.put_new("a/b", b"2")
    storage.put_new("c/d", b"3")
    with pytest.raises(StorageError, match="a file is where a directory is needed"):
        storage.put("c", b"4")
    with pytest.raises(ObjectMissing):
        storage.get("c")


@pytest.mark.parametrize("write", ["put_new", "put"])
def test_a_forked_child_writes_beside_its_parent(tmp_path: Path, write: str) -> None:
    storage = LocalStorage(tmp_path)
    put: Callable[[str, bytes], object] = getattr(storage, write)
    put("a/parent", b"1")
    child = os.fork()
    if child == 0:
        put("a/child", b"2")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    put("a/parent-2", b"3")
    assert [entry.name for entry in storage.list("")] == ["a/child", "a/parent", "a/parent-2"]
