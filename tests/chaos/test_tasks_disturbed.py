"""Tasks that are cancelled in the middle, or that have twins: only what the driver chose counts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

import holdfast as hf
from holdfast.runtime.epoch import runner
from tests.chaos import apps, doubles
from tests.chaos.apps import Place, Shape
from tests.chaos.checker import Verdict, check
from tests.chaos.doubles import Gate
from tests.chaos.harness import wait_until
from tests.chaos.inprocess import run_here

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHAPE = Shape(epochs=6)
EVENT = 3 * SHAPE.rows + 7
"""In the fourth epoch."""


def in_function(place: Place, gate: Path) -> hf.Job:
    """The task waits in the user's function, behind the shuffle."""
    ledger = partial(doubles.GatedLedger, gate=gate, event=EVENT)
    return apps.declare(place, SHAPE, ledger_of=ledger)


def in_map_side(place: Place, gate: Path) -> hf.Job:
    """The task waits in the transform, while it feeds the shuffle."""
    return apps.declare(place, SHAPE, map_side=doubles.gated_map_side(gate, EVENT))


@pytest.mark.parametrize("declare", [in_function, pytest.param(in_map_side, marks=pytest.mark.heavy)])
def test_a_job_cancelled_in_the_middle_leaves_nothing_and_is_repeated(
    declare: Callable[[Place, Path], hf.Job], spark: SparkSession, tmp_path: Path
) -> None:
    place, gate = Place(tmp_path), Gate(tmp_path / "gate")

    def cancel() -> None:
        wait_until(lambda: gate.reached, "a task to be in the middle")
        spark.sparkContext.cancelAllJobs()

    canceller = threading.Thread(target=cancel)
    canceller.start()
    ending = run_here(spark, place, SHAPE, job=declare(place, gate.path))
    canceller.join()
    assert isinstance(ending.error, hf.EpochFailed), str(ending)
    assert "epoch 4" in ending.refusal
    gate.open()
    assert run_here(spark, place, SHAPE, job=declare(place, gate.path)).error is None
    finding = check(place, SHAPE)
    assert finding.verdict is Verdict.TRUE, finding


@pytest.mark.heavy
@pytest.mark.parametrize("taken", ["first", "second"])
def test_of_two_tasks_for_the_same_shard_one_counts(
    taken: Literal["first", "second"], spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both write files and change the working state; each shard's next epoch starts from the one chosen."""
    monkeypatch.setattr(runner, "run_operator", partial(doubles.run_twice, taken))
    place = Place(tmp_path)
    ending = run_here(spark, place, SHAPE, job=apps.declare(place, SHAPE, marks="random"))
    assert ending.error is None, str(ending)
    finding = check(place, SHAPE)
    assert finding.verdict is Verdict.TRUE, finding
