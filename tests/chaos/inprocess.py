"""Runs the crash-test job inside the test's own process: for damage and doubles, where none need die."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.connectors.files.sink import FilePublisher
from holdfast.errors import HoldfastError
from tests.chaos import apps
from tests.chaos.apps import Place, Shape
from tests.chaos.harness import DEADLINE_SECONDS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    import holdfast as hf

CRASH_EPOCH = 10


class Crash(BaseException):
    """The driver's end, as a test asks for it."""


@dataclass(frozen=True)
class Ending:
    """How a run ended: well, or with an error; and what it told."""

    error: BaseException | None
    said: tuple[str, ...]

    @property
    def refusal(self) -> str:
        """The text of the error, which must be one of ours and one line."""
        assert isinstance(self.error, HoldfastError), f"not a refusal of ours: {self.error!r}"
        text = str(self.error)
        assert "\n" not in text, f"more than one line: {text}"
        return text

    def __str__(self) -> str:
        return "\n".join([*self.said, f"ended: {self.error!r}" if self.error else "ended well"])


def run_here(
    spark: SparkSession, place: Place, shape: Shape, *, job: hf.Job | None = None, **changed: Any
) -> Ending:
    """Run the job to its end, or to the error that ends it. `changed`: options that differ from the usual."""
    said: list[str] = []
    handle = (job or apps.declare(place, shape, marks="fixed")).start(
        spark=spark, on_message=said.append, **{**apps.options(place, shape), **changed}
    )
    try:
        handle.wait(DEADLINE_SECONDS)
    except (Exception, Crash) as error:
        assert not handle.running, f"the run did not end in {DEADLINE_SECONDS} s"
        return Ending(error, tuple(said))
    return Ending(None, tuple(said))


def crash_in_sink(patch: pytest.MonkeyPatch, uid: str, epoch: int, *, after: Callable[[], None]) -> None:
    """The driver dies when it is about to show `epoch` in this sink: committed, but not visible."""
    publish = FilePublisher.publish

    def crashing(self: FilePublisher, at: int, parts: Any) -> None:
        if self._uid == uid and at >= epoch:
            after()
            raise Crash(f"before epoch {at} was shown in {uid}")
        publish(self, at, parts)

    patch.setattr(FilePublisher, "publish", crashing)


@dataclass(frozen=True)
class Template:
    """A job that died in the middle, to be copied and hurt.

    All copies publish to the same place, brought back to its old content each time: the place of a sink is a
    part of the job, and another one would be another job.
    """

    kept: Path
    outputs: Path

    def copy(self, to: Path) -> Place:
        """A fresh copy, without working state: whatever is restored comes from the checkpoint."""
        shutil.copytree(self.kept / "ck", to / "ck")
        shutil.rmtree(self.outputs, ignore_errors=True)
        shutil.copytree(self.kept / "out", self.outputs)
        return Place(to, self.outputs)

    def copy_whole(self, to: Path) -> Place:
        """A fresh copy with sinks of its own, for a process of its own."""
        shutil.copytree(self.kept / "ck", to / "ck")
        shutil.copytree(self.kept / "out", to / "out")
        return Place(to)


def make_template(spark: SparkSession, directory: Path, shape: Shape) -> Template:
    """Run the job until it dies after a commit whose output is not visible yet."""
    place = Place(directory / "first", directory / "out")
    with pytest.MonkeyPatch.context() as patch:
        crash_in_sink(patch, apps.LEDGER + "-out", CRASH_EPOCH, after=lambda: None)
        ending = run_here(spark, place, shape)
        assert isinstance(ending.error, Crash), str(ending)
    shutil.copytree(place.outputs, place.root / "out")
    return Template(place.root, place.outputs)
