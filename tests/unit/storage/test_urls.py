from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.errors import DefinitionError
from holdfast.storage.local_directory import LocalStorage
from holdfast.storage.urls import OPEN_MAX, open_storage


def test_a_path_and_its_file_url_are_the_same_place(tmp_path: Path) -> None:
    place = tmp_path / "with space"
    assert open_storage(str(place)) == open_storage(f"file://{tmp_path}/with%20space") == LocalStorage(place)


def test_a_relative_path_is_fixed_when_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_storage("fixed-when-opened").url == str(tmp_path / "fixed-when-opened")


def test_storage_without_fsync_is_reopened_without_fsync(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "odd ?#name", fsync=False)
    assert open_storage(storage.url) == storage
    assert open_storage(storage.url) != LocalStorage(tmp_path / "odd ?#name")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "  ",
        "ftp://host/x",
        "hdfs://nn/x",
        "file://host/x",
        "file://relative",
        "file:///x?fsync=no",
        "s3://",
    ],
)
def test_nonsense_is_a_definition_error_that_shows_what_to_write(url: str) -> None:
    with pytest.raises(
        DefinitionError, match=r"give a directory|use a directory|file:///absolute|fsync=off|s3://b"
    ):
        open_storage(url)


def test_a_forked_child_opens_its_own(tmp_path: Path) -> None:
    ours = open_storage(str(tmp_path))
    child = os.fork()
    if child == 0:
        os._exit(0 if open_storage(str(tmp_path)) is not ours else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_local_storage_does_not_load_the_object_store_client(tmp_path: Path) -> None:
    program = (
        "import sys; from holdfast.storage.urls import open_storage;"
        "open_storage(sys.argv[1]).put('a', b'1');"
        "print('obstore' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.check_output([sys.executable, "-c", program, str(tmp_path)], env=environment, text=True)
    assert ran == "False\n"


def test_places_that_are_no_longer_used_hold_no_files(tmp_path: Path) -> None:
    kept = open_storage(str(tmp_path / "kept"))
    before = len(os.listdir("/proc/self/fd"))
    for number in range(100):
        open_storage(str(tmp_path / f"{number}")).put("data/1", b"1")
        assert open_storage(str(tmp_path / "kept")) is kept
    assert len(os.listdir("/proc/self/fd")) - before < 4 * OPEN_MAX
