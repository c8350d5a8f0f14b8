from __future__ import annotations

from typing import Any

import pytest

import holdfast as hf
from holdfast.runtime.job import Job


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
