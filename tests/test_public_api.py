"""The public surface: what `import holdfast as hf` promises. Changing the list below is changing the API."""

from __future__ import annotations

import inspect

import pytest

import holdfast

PUBLIC = [
    "AggregatingState",
    "BatchFunction",
    "CRASH",
    "ConsoleSink",
    "CorruptionError",
    "DefinitionError",
    "EpochFailed",
    "EpochInterrupted",
    "ExponentialDelay",
    "FailureRate",
    "FencedOut",
    "FileSink",
    "FileSource",
    "FileStateStorage",
    "FixedDelay",
    "GeneratorSource",
    "HoldfastError",
    "InputVanished",
    "Job",
    "JobHandle",
    "KeyState",
    "KeyedFunction",
    "ListState",
    "MapState",
    "MemorySink",
    "MemorySource",
    "NoRestart",
    "OperatorFunction",
    "PoisonEpoch",
    "PostgresStateStorage",
    "Progress",
    "Publisher",
    "RedisStateStorage",
    "ReducingState",
    "RestoreError",
    "RetryableError",
    "RunOptions",
    "Savepoint",
    "SavingPool",
    "SessionLost",
    "Sink",
    "Slice",
    "Source",
    "SourceReader",
    "StagedPart",
    "StateId",
    "StateReader",
    "StateStorage",
    "Uncoordinated",
    "UserCodeError",
    "ValueState",
    "collect",
    "count",
    "first",
    "last",
    "max",
    "mean",
    "min",
    "register_data_sources",
    "sum",
]


def test_the_public_names_are_the_promised_ones() -> None:
    assert sorted(holdfast.__all__) == sorted(PUBLIC), "on purpose? then change PUBLIC and CHANGELOG.md too"


def test_the_public_names_are_sorted() -> None:
    def constants_classes_functions(name: str) -> tuple[int, str]:
        return (0 if name.isupper() else 1 if name[0].isupper() else 2), name

    assert list(holdfast.__all__) == sorted(holdfast.__all__, key=constants_classes_functions)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_there_and_documented(name: str) -> None:
    value = getattr(holdfast, name)
    if inspect.isclass(value):
        own_text = vars(value).get("__doc__")  # not the one inherited from a base
    else:
        own_text = inspect.getdoc(value)
    assert own_text, f"holdfast.{name} needs a docstring of its own: what it is, when to use it"


def test_every_public_error_is_a_holdfast_error() -> None:
    classes = [value for name in PUBLIC if inspect.isclass(value := getattr(holdfast, name))]
    strangers = [c for c in classes if issubclass(c, Exception) and not issubclass(c, holdfast.HoldfastError)]
    assert not strangers
