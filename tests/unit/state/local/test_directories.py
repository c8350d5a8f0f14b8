"""Directories of working state: private ones, and how one of a shard follows the other."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from holdfast.errors import HoldfastError, MachineError
from holdfast.ids import KeyGroup, KeyGroupRange
from holdfast.nodes.working_dir_lock import take_owner
from holdfast.runtime.settings import check_settings
from holdfast.state.local import directories
from holdfast.state.local.backends import MEMORY_DIR_SETTING
from holdfast.state.local.directories import default_working_dir, private_directory
from holdfast.tasks.messages import Workspace
from holdfast.tasks.working_state import shard_directory

GROUPS = KeyGroupRange(KeyGroup(0), KeyGroup(8))
REMEDY = r"; remove it, or choose a place with --working-dir or HOLDFAST_WORKING_DIR$"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's temporary directory, where anybody may write."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("HOLDFAST_WORKING_DIR", raising=False)
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    return tmp_path


@pytest.fixture
def others(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The default working directory, made by another user before this one came."""
    made = default_working_dir()
    made.mkdir(mode=0o777)
    if os.geteuid() == 0:
        os.chown(made, 65534, 65534)
    else:
        # The directory cannot be given away, so this process is taken for another user's.
        other = os.geteuid() + 1
        monkeypatch.setattr("holdfast.state.local.directories.os.geteuid", lambda: other)
        made = made.rename(default_working_dir())
    return made


def test_it_is_made_for_this_user_alone_whatever_the_mask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        made = private_directory(tmp_path / "a" / "holdfast-1")
    finally:
        os.umask(before)
    assert mode(made) == 0o700
    assert private_directory(made) == made


def test_one_of_this_user_that_others_may_enter_is_closed_to_them(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir(mode=0o755)
    assert mode(private_directory(tmp_path / "w")) == 0o700


def test_a_link_is_refused_wherever_it_points(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "w").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(MachineError, match=r"w is no directory, .*" + REMEDY):
        private_directory(tmp_path / "w")


def test_what_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(MachineError, match=r"working state cannot be kept in .*" + REMEDY):
        private_directory(tmp_path / "file" / "w")


def test_the_default_of_another_user_is_refused_by_every_way_to_it(others: Path) -> None:
    settings = check_settings("ck", {})
    assert (settings.working_dir, settings.private_working_dir) == (str(others), True)
    with pytest.raises(MachineError, match=r"belongs to user \d+, not to user \d+, .*" + REMEDY):
        take_owner(settings.working_dir, private=settings.private_working_dir)
    # In a task: on one machine, and on an executor without a scratch directory.
    for root in (settings.working_dir, None):
        with pytest.raises(MachineError, match="belongs to user"):
            shard_directory(Workspace("i", "ck", root, "lmdb", private_root=True), "uid", GROUPS)
    assert list(others.iterdir()) == []


def test_memory_of_another_user_is_refused(others: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MEMORY_DIR_SETTING, str(others.parent))
    monkeypatch.setattr("holdfast.state.local.backends.os.getuid", lambda: int(others.name.split("-")[1]))
    workspace = Workspace("i", "ck", str(others.parent / "chosen"), "memory")
    with pytest.raises(HoldfastError, match="belongs to user"):
        shard_directory(workspace, "uid", GROUPS)


def test_a_place_that_the_user_chose_is_taken_as_it_is(
    others: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not check_settings("ck", {"working_dir": others}).private_working_dir
    monkeypatch.setenv("HOLDFAST_WORKING_DIR", str(others))
    settings = check_settings("ck", {})
    assert (settings.working_dir, settings.private_working_dir) == (str(others), False)


def test_the_sweep_keeps_what_is_in_use_and_removes_the_rest(tmp_path: Path) -> None:
    built = directories.begin(tmp_path)
    (tmp_path / ".new-leftover").mkdir()
    (tmp_path / ".dead-leftover").mkdir()
    first = directories.publish(built, None)
    assert first is not None
    second = directories.publish(directories.begin(tmp_path), first)
    directories.sweep(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["g00000001", "g00000002"]
    built.release()
    directories.sweep(tmp_path)
    assert directories.newest(tmp_path) == second
    assert sorted(os.listdir(tmp_path)) == ["g00000002"]


def test_of_two_that_build_at_once_one_is_published(tmp_path: Path) -> None:
    one, two = directories.begin(tmp_path), directories.begin(tmp_path)
    assert directories.publish(one, None) == tmp_path / "g00000001"
    assert directories.publish(two, None) is None
    assert sorted(os.listdir(tmp_path)) == ["g00000001"]
