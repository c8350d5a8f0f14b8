from __future__ import annotations

from typing import Any

import pytest

import holdfast as hf
from holdfast.runtime.job import Job
from holdfast.runtime.settings import check_settings


def job() -> Job:
    declared = hf.Job("settings")
    declared.source(hf.MemorySource([1, 2]), uid="numbers").sink(hf.MemorySink(), uid="out")
    return declared


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [
        ("guarantee", "twice", "exactly-once"),
        ("until", "tomorrow", "exhausted"),
        ("checkpoint_interval", "soon", "duration"),
        ("parallelism", 0, "parallelism"),
        ("parallelism", 500, "key_groups"),
        ("key_groups", 0, "key_groups"),
        ("max_rows_per_epoch", 0, "max_rows_per_epoch"),
        ("target_latency", "soon", "duration"),
        ("target_latency", "0s", "target_latency='0s'"),
        ("retain", 1, "retain"),
        ("backend", "stone", "'lmdb', 'memory', 'rocksdb'"),
        ("paralelism", 2, "parallelism"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused_before_spark_starts(
    option: str, value: Any, named: str
) -> None:
    with pytest.raises(hf.DefinitionError, match=named) as error:
        job().start("ck", **{option: value})
    assert "\n" not in str(error.value)


def test_every_mistake_is_named_at_once() -> None:
    wrong = hf.Job("wrong")
    numbers = wrong.source(hf.MemorySource([1]))
    numbers.sink(hf.MemorySink(), uid="same")
    numbers.sink(hf.MemorySink(), uid="same")
    with pytest.raises(hf.DefinitionError) as error:
        wrong.start("ck")
    assert "test_settings.py" in str(error.value)
    assert "'same'" in str(error.value)
    assert "uid" in str(error.value)


@pytest.mark.parametrize("interval", ["epoch_interval", "checkpoint_interval"])
def test_a_target_latency_that_an_interval_makes_impossible_is_refused(interval: str) -> None:
    with pytest.raises(hf.DefinitionError, match=f"target_latency='2s' cannot be kept with {interval}='2s'"):
        job().start("ck", target_latency="2s", **{interval: "2s"})
    assert check_settings("ck", {"target_latency": "2s"}).target_latency == 2
    assert check_settings("ck", {}).target_latency is None
