"""What a power cut leaves. Negative controls: with a sync left out, the same check must fail."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.errors import ObjectMissing, StorageError, UnknownOutcome
from holdfast.storage.contract import Put
from holdfast.storage.local_directory import LocalStorage
from tests.unit.storage.page_cache import PageCacheStorage, SyncOf


def written_survives(storage: PageCacheStorage) -> bool:
    """Write in every way, cut the power, look."""
    made = storage.root.parent / "made"
    made.write_bytes(b"file")
    storage.put_new("commits/1", b"new")
    storage.put("deep/er/still/2", b"put")
    storage.put_file("snapshots/3", made)
    storage.put_stream("snapshots/4", lambda: iter([b"str", b"eam"]))
    storage.power_cut()
    try:
        found = [storage.get(name) for name in ("commits/1", "deep/er/still/2", "snapshots/3", "snapshots/4")]
    except ObjectMissing:
        return False
    return found == [b"new", b"put", b"file", b"stream"]


def test_what_was_written_survives_a_power_cut(tmp_path: Path) -> None:
    assert written_survives(PageCacheStorage(tmp_path / "store"))


@pytest.mark.parametrize("forgotten", SyncOf)
def test_without_any_one_of_the_syncs_a_power_cut_loses_it(tmp_path: Path, forgotten: SyncOf) -> None:
    assert not written_survives(PageCacheStorage(tmp_path / "store", forgets=[forgotten]))


def test_a_second_power_cut_takes_nothing_more(tmp_path: Path) -> None:
    storage = PageCacheStorage(tmp_path)
    storage.put_new("a/1", b"1")
    storage.power_cut()
    storage.put_new("a/2", b"2")
    storage.power_cut()
    assert [entry.name for entry in storage.list("")] == ["a/1", "a/2"]


def test_a_replaced_object_is_the_old_or_the_new_after_a_power_cut(tmp_path: Path) -> None:
    storage = PageCacheStorage(tmp_path)
    storage.put("a", b"old")
    storage.put("a", b"new")
    storage.power_cut()
    assert storage.get("a") == b"new"


def test_a_deletion_may_be_undone_by_a_power_cut(tmp_path: Path) -> None:
    storage = PageCacheStorage(tmp_path)
    storage.put_new("a/1", b"1")
    storage.delete(["a/1"])
    storage.power_cut()
    assert storage.get("a/1") == b"1"


class Crash(Exception):
    """Stands for a writer that stops between naming its object and syncing the directory."""


def unfinished(storage: PageCacheStorage, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(self: PageCacheStorage, fd: int) -> None:
        raise Crash

    storage.put_new("commits/0", b"0")
    with monkeypatch.context() as patch:
        patch.setattr(PageCacheStorage, "_sync_directory", crash)
        with pytest.raises(Crash):
            storage.put_new(name, b"1")


def test_an_object_named_but_not_synced_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = PageCacheStorage(tmp_path)
    unfinished(storage, "commits/1", monkeypatch)
    assert storage.get("commits/1") == b"1"
    storage.power_cut()
    assert storage.size("commits/1") is None


@pytest.mark.parametrize(
    "look",
    [
        lambda storage: storage.put_new("commits/1", b"other") is Put.EXISTS,
        lambda storage: [entry.name for entry in storage.list("commits/")] == ["commits/0", "commits/1"],
    ],
    ids=["put_new-says-exists", "list-shows-it"],
)
def test_what_put_new_or_list_told_of_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: Callable[[LocalStorage], bool]
) -> None:
    storage = PageCacheStorage(tmp_path)
    unfinished(storage, "commits/1", monkeypatch)
    assert look(storage)
    storage.power_cut()
    assert storage.get("commits/1") == b"1"


def system_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The order in which data and names are made durable, from now on."""
    calls: list[str] = []

    def watched(name: str, real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **options: object) -> object:
            is_directory = name == "fsync" and os.path.isdir(f"/proc/self/fd/{arguments[0]}")
            calls.append(f"{name} directory" if is_directory else name)
            return real(*arguments, **options)

        return call

    for name in ("write", "fsync", "link", "replace"):
        monkeypatch.setattr(os, name, watched(name, getattr(os, name)))
    return calls


def test_data_is_synced_before_its_name_and_the_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = LocalStorage(tmp_path)
    storage.put_new("a/0", b"0")
    calls = system_calls(monkeypatch)
    storage.put_new("a/1", b"1")
    assert calls == ["write", "fsync", "link", "fsync directory"]
    calls.clear()
    storage.put("a/1", b"2")
    assert calls == ["write", "fsync", "replace", "fsync directory"]


def test_without_fsync_no_call_syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = LocalStorage(tmp_path, fsync=False)
    calls = system_calls(monkeypatch)
    storage.put_new("a/1", b"1")
    storage.list("")
    assert calls == ["write", "link"]


def fail_sync_of(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fsync

    def fsync(fd: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{fd}") == (kind == "directory"):
            raise OSError(5, "Input/output error")
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)


def test_data_that_cannot_be_synced_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = LocalStorage(tmp_path)
    fail_sync_of("file", monkeypatch)
    with pytest.raises(StorageError, match="nothing was written"):
        storage.put_new("a", b"1")
    assert storage.list("") == []
    assert os.listdir(tmp_path / ".tmp") == []


def test_a_name_that_cannot_be_synced_is_an_unknown_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = LocalStorage(tmp_path)
    storage.put_new("a/0", b"0")
    fail_sync_of("directory", monkeypatch)
    with pytest.raises(UnknownOutcome, match="a power cut may lose it"):
        storage.put_new("a/1", b"1")
    with pytest.raises(UnknownOutcome):
        storage.put_new("a/1", b"1")


def test_listing_what_is_known_to_be_durable_syncs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, other = LocalStorage(tmp_path), LocalStorage(tmp_path)
    storage.put_new("commits/1", b"1")
    calls = system_calls(monkeypatch)
    storage.list("commits/")
    assert calls == []
    other.put_new("commits/2", b"2")
    calls.clear()
    storage.list("commits/")
    storage.list("commits/")
    assert calls == ["fsync directory"]
