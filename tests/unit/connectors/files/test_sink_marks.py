"""What a file sink remembers: files may be taken away, publishers may die or sleep at any step, and an epoch
is still shown once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.connectors.contract import Mark, RememberingPublisher, StagedPart
from holdfast.connectors.files.sink import FilePublisher, FileSink
from holdfast.errors import RestoreError, RetryableError
from holdfast.storage.local_directory import LocalStorage


class Died(BaseException):
    """The publisher's process is gone."""


class Directory:
    """A sink directory, what readers see of it, and a consumer that takes files away."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.taken: list[str] = []

    def opened(self, format: str = "csv", begin: bool = True, through: int = 0) -> FilePublisher:
        publisher = FileSink(self.root, format=format).publisher("job", "out")
        if begin:
            publisher.begin(through)
        return publisher

    def seen(self) -> list[str]:
        """Everything that was ever shown: taken away, or there now."""
        return sorted([*self.taken, *(path.read_text() for path in self.root.glob("out-*"))])

    def take(self) -> None:
        for path in self.root.glob("out-*"):
            self.taken.append(path.read_text())
            path.unlink()


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(tmp_path)


def rows(epoch: int, input: str = "i") -> list[StagedPart]:
    return [StagedPart(0, 1, lambda: pa.table({"n": [epoch]}), input)]


def shown(*epochs: int) -> list[str]:
    return sorted(f'"n"\n{epoch}\n' for epoch in epochs)


def dies_at(monkeypatch: pytest.MonkeyPatch, method: str, nth: int = 1, after: bool = False) -> None:
    """The process dies when it calls a method of storage for the nth time; `after`: once that is done."""
    real, calls = getattr(LocalStorage, method), [0]

    def dying(self: LocalStorage, *args: Any) -> Any:
        calls[0] += 1
        if calls[0] != nth:
            return real(self, *args)
        if after:
            real(self, *args)
        raise Died

    monkeypatch.setattr(LocalStorage, method, dying)


def test_it_is_a_publisher_that_remembers(directory: Directory) -> None:
    assert isinstance(directory.opened(), RememberingPublisher)


def test_a_new_directory_remembers_nothing_until_it_was_begun(directory: Directory) -> None:
    assert directory.opened(begin=False).mark() is None
    assert directory.opened(begin=False).mark() is None
    directory.opened()
    assert directory.opened(begin=False).mark() == Mark(0)


def test_a_directory_that_a_sink_began_with_later_remembers_what_it_is_not_to_show(
    directory: Directory,
) -> None:
    publisher = directory.opened(through=3)
    assert publisher.mark() == Mark(3)
    publisher.publish(4, rows(4))
    assert directory.opened(through=3).mark() == Mark(4, "i")
    assert directory.opened(through=6).mark() == Mark(6)
    assert len(directory.seen()) == 1


def test_files_that_a_consumer_took_away_are_not_shown_again(directory: Directory) -> None:
    publisher = directory.opened()
    publisher.publish(1, rows(1))
    publisher.publish(2, rows(2))
    directory.take()
    again = directory.opened()
    assert again.mark() == Mark(2, "i")
    again.publish(2, rows(2))
    again.publish(3, rows(3))
    assert directory.seen() == shown(1, 2, 3)


def test_a_file_is_not_shown_again_in_another_format(directory: Directory) -> None:
    directory.opened().publish(1, rows(1))
    assert directory.opened(format="json").mark() == Mark(1, "i")


STEPS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "before the rows are aside": lambda patch: dies_at(patch, "put"),
    "before the mark": lambda patch: dies_at(patch, "put_new"),
    "after the mark": lambda patch: dies_at(patch, "put_new", after=True),
    "before the rows are shown": lambda patch: dies_at(patch, "move"),
    "after the rows are shown": lambda patch: dies_at(patch, "move", after=True),
}


@pytest.mark.parametrize("taken", [False, True], ids=["left there", "taken away"])
@pytest.mark.parametrize("step", STEPS)
def test_a_publisher_that_died_at_any_step_has_shown_the_epoch_once(
    directory: Directory, step: str, taken: bool
) -> None:
    directory.opened().publish(1, rows(1))
    publisher = directory.opened()
    with pytest.MonkeyPatch.context() as patch:
        STEPS[step](patch)
        with pytest.raises(Died):
            publisher.publish(2, rows(2))
    if taken:
        directory.take()
    after = directory.opened()
    mark = after.mark()
    if taken:
        directory.take()
    assert mark in (Mark(1, "i"), Mark(2, "i"))
    if mark == Mark(1, "i"):
        after.publish(2, rows(2))
    after.publish(3, rows(3))
    assert directory.seen() == shown(1, 2, 3)


def test_of_two_publishers_of_an_epoch_one_shows_it(directory: Directory) -> None:
    first, second = directory.opened(), directory.opened()
    first.publish(1, rows(1))
    directory.take()
    second.publish(1, rows(1))
    assert directory.seen() == shown(1)


@pytest.mark.parametrize("others", [1, 2, 5])
@pytest.mark.parametrize("step", ["put", "put_new", "move"])
def test_a_publisher_that_slept_at_any_step_shows_nothing_again(
    directory: Directory, monkeypatch: pytest.MonkeyPatch, step: str, others: int
) -> None:
    """However far the others have come meanwhile: its mark may be swept by then, and its name free again."""
    real = getattr(LocalStorage, step)
    awake = []

    def sleepy(self: LocalStorage, *args: Any) -> Any:
        if not awake:
            awake.append(True)
            successor = directory.opened(begin=False)
            successor.mark()
            for epoch in range(1, 1 + others):
                successor.publish(epoch, rows(epoch))
            directory.take()
        return real(self, *args)

    sleeper = directory.opened()
    monkeypatch.setattr(LocalStorage, step, sleepy)
    sleeper.publish(1, rows(1))
    assert directory.seen() == shown(*range(1, 1 + others))
    assert directory.opened().mark() == Mark(others, "i")


def test_another_copy_that_is_ahead_is_not_taken_for_ourselves(directory: Directory) -> None:
    ahead, behind = directory.opened(), directory.opened()
    for epoch in (1, 2, 3):
        ahead.publish(epoch, rows(epoch))
    with pytest.raises(RetryableError, match=r"another run has shown epoch 3 .* about to show epoch 2"):
        behind.publish(2, rows(2, "other"))
    ahead.publish(2, rows(2))
    assert directory.seen() == shown(1, 2, 3)


@pytest.mark.parametrize("name", ["_holdfast/out/000000000001", "_holdfast-out"])
def test_a_damaged_mark_or_owner_is_named(directory: Directory, name: str) -> None:
    directory.opened().publish(1, rows(1))
    (directory.root / name).write_bytes(b"")
    with pytest.raises(RestoreError, match=rf"{name} in .* is damaged; restore it"):
        directory.opened().mark()


def test_an_epoch_made_of_other_rows_is_refused_not_taken_for_shown(directory: Directory) -> None:
    directory.opened().publish(1, rows(1, "these"))
    with pytest.raises(RestoreError, match="shows epoch 1 made of other rows than this checkpoint has"):
        directory.opened().publish(1, rows(1, "those"))


def test_a_directory_that_an_earlier_version_wrote_tells_by_its_files(directory: Directory) -> None:
    (directory.root / "_holdfast-out").write_text('{"job": "job", "uid": "out"}')
    (directory.root / "out-000000000007.csv").write_text(shown(7)[0])
    publisher = directory.opened()
    assert publisher.mark() == Mark(7)
    publisher.publish(8, rows(8))
    assert directory.opened().mark() == Mark(8, "i")


def test_little_is_left_beside_the_rows_however_many_epochs_pass(directory: Directory) -> None:
    publisher = directory.opened()
    for epoch in range(1, 30):
        publisher.publish(epoch, rows(epoch))
    assert len(list((directory.root / "_holdfast" / "out").iterdir())) <= 2


class Bucket:
    """Storage that cannot rename, as object stores cannot."""

    def __init__(self, storage: LocalStorage) -> None:
        self._storage = storage

    def __getattr__(self, name: str) -> Any:
        assert name != "move"
        return getattr(self._storage, name)


def test_in_a_bucket_files_below_the_mark_may_be_taken_away(directory: Directory) -> None:
    def opened() -> FilePublisher:
        bucket: Any = Bucket(LocalStorage(directory.root))
        publisher = FilePublisher(bucket, "job", "out", "csv")
        publisher.begin(0)
        return publisher

    publisher = opened()
    publisher.publish(1, rows(1))
    publisher.publish(2, rows(2))
    directory.take()
    again = opened()
    assert again.mark() == Mark(2, "i")
    again.publish(1, rows(1))
    again.publish(3, rows(3))
    assert directory.seen() == shown(1, 2, 3)


def bucket(directory: Directory, format: str = "csv") -> FilePublisher:
    storage: Any = Bucket(LocalStorage(directory.root))
    return FilePublisher(storage, "job", "out", format)


@pytest.mark.parametrize("asleep_at", ["out-", "_holdfast/out/"], ids=["its file", "its mark"])
@pytest.mark.parametrize("others", [1, 2, 5])
def test_in_a_bucket_a_publisher_that_slept_takes_nothing_away_that_others_rely_on(
    directory: Directory, monkeypatch: pytest.MonkeyPatch, asleep_at: str, others: int
) -> None:
    """They have found its file there, or it finds theirs; and are past that epoch when it wakes up."""
    real, awake = LocalStorage.put_new, list[bool]()

    def sleepy(self: LocalStorage, name: str, data: bytes) -> Any:
        if not awake and name.startswith(asleep_at):
            awake.append(True)
            successor = bucket(directory)
            for epoch in range(1, 1 + others):
                successor.publish(epoch, rows(epoch))
        return real(self, name, data)

    sleeper = bucket(directory)
    monkeypatch.setattr(LocalStorage, "put_new", sleepy)
    sleeper.publish(1, rows(1))
    assert directory.seen() == shown(*range(1, 1 + others))
    assert bucket(directory).mark() == Mark(others, "i")


def test_in_a_bucket_an_epoch_is_not_shown_again_in_another_format(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        dies_at(patch, "put_new", nth=2)
        with pytest.raises(Died):
            bucket(directory).publish(1, rows(1))
    bucket(directory, "json").publish(1, rows(1))
    assert directory.seen() == shown(1)
