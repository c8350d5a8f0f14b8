"""The public surface: what `import holdfast as hf` and its public modules promise.

Changing the list below is changing the API.
"""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any, get_type_hints

import mypy.api
import pyarrow as pa
import pytest

import holdfast
from holdfast import connectors, dashboard, testing
from holdfast.testing import conformance

MODULES = {
    "holdfast": holdfast,
    "holdfast.connectors": connectors,
    "holdfast.dashboard": dashboard,
    "holdfast.testing": testing,
    "holdfast.testing.conformance": conformance,
}
"""What a user may import; everything else is internal."""

PUBLIC = [
    "ActiveReplicas",
    "AggregatingState",
    "Arrived",
    "BatchContext",
    "BatchFunction",
    "BatchSource",
    "BroadcastContext",
    "BroadcastFunction",
    "BroadcastState",
    "CRASH",
    "ChannelSink",
    "ChannelSource",
    "CoFunction",
    "ConsoleSink",
    "Context",
    "CorruptionError",
    "DefinitionError",
    "DeltaSink",
    "EpochFailed",
    "EpochInterrupted",
    "ExponentialDelay",
    "FailureRate",
    "FencedOut",
    "FileSink",
    "FileSource",
    "FileStateStorage",
    "FixedDelay",
    "ForeachEpochSink",
    "GeneratorSource",
    "HoldfastError",
    "IcebergSink",
    "InputVanished",
    "Job",
    "JobHandle",
    "KafkaSink",
    "KafkaSource",
    "KeepingPublisher",
    "KeyState",
    "KeyedFunction",
    "ListState",
    "MalformedInput",
    "MapState",
    "Mark",
    "MemorySink",
    "MemorySource",
    "NoRestart",
    "OperatorFunction",
    "Part",
    "PartsHandle",
    "PassiveStandby",
    "PoisonEpoch",
    "PostgresSink",
    "PostgresStateStorage",
    "Progress",
    "Publisher",
    "RabbitSink",
    "RabbitSource",
    "RedisSink",
    "RedisStateStorage",
    "RedisStreamSource",
    "ReducingState",
    "RememberingPublisher",
    "RestoreError",
    "RetryableError",
    "Rollback",
    "Row",
    "RunOptions",
    "Savepoint",
    "SavingPool",
    "Secret",
    "SelectiveSink",
    "SessionLost",
    "ShardContext",
    "Sink",
    "SinkFailed",
    "SinkWentBack",
    "Slice",
    "SocketSink",
    "SocketSource",
    "Source",
    "SourceReader",
    "StagedPart",
    "StateId",
    "StateReader",
    "StateStorage",
    "StopUnfinished",
    "TableSource",
    "Timers",
    "Unavailable",
    "Uncoordinated",
    "Unpublished",
    "UpsertSink",
    "UpstreamBackup",
    "UserCodeError",
    "ValueState",
    "Waiting",
    "WindowBounds",
    "WindowFunction",
    "collect",
    "count",
    "count_window",
    "first",
    "last",
    "max",
    "mean",
    "min",
    "register_data_sources",
    "session",
    "sliding",
    "sum",
    "tumbling",
]


def test_the_public_names_are_the_promised_ones() -> None:
    assert sorted(holdfast.__all__) == sorted(PUBLIC), "on purpose? then change PUBLIC and CHANGELOG.md too"


@pytest.mark.parametrize("module", MODULES.values(), ids=MODULES)
def test_the_public_names_are_sorted(module: Any) -> None:
    def constants_classes_functions(name: str) -> tuple[int, str]:
        return (0 if name.isupper() else 1 if name[0].isupper() else 2), name

    assert list(module.__all__) == sorted(module.__all__, key=constants_classes_functions)


@pytest.mark.parametrize("module", MODULES.values(), ids=MODULES)
def test_completion_shows_the_public_names_and_nothing_else(module: Any) -> None:
    assert dir(module) == sorted(module.__all__)


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module, each in MODULES.items() for name in each.__all__]
)
def test_a_public_name_is_there_and_documented(module: str, name: str) -> None:
    value = getattr(MODULES[module], name)
    if inspect.isclass(value):
        own_text = vars(value).get("__doc__")  # not the one inherited from a base
    else:
        own_text = inspect.getdoc(value)
    assert own_text, f"{module}.{name} needs a docstring of its own: what it is, when to use it"


def test_one_name_means_one_thing_in_all_public_modules() -> None:
    for name in {*PUBLIC} & {*connectors.__all__}:
        assert getattr(connectors, name) is getattr(holdfast, name)


def test_importing_public_modules_starts_no_spark() -> None:
    program = f"import sys, {', '.join(MODULES)}; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


CONTEXTS = {
    holdfast.KeyedFunction: holdfast.Context,
    holdfast.OperatorFunction: holdfast.ShardContext,
    holdfast.BatchFunction: holdfast.BatchContext,
}


@pytest.mark.parametrize("function", CONTEXTS)
def test_what_a_function_is_given_is_typed(function: type) -> None:
    methods = [each for name, each in inspect.getmembers(function, inspect.isfunction) if name[0] != "_"]
    given = [get_type_hints(method) for method in methods]
    assert [hints["ctx"] for hints in given if "ctx" in hints] == [CONTEXTS[function]] * (
        5 if function is holdfast.KeyedFunction else 2
    )
    rows = holdfast.Row if function is not holdfast.BatchFunction else pa.Table
    assert [hints[name] for hints in given for name in ("row", "rows") if name in hints] == [rows]


USER_CODE = """
from collections.abc import Iterator

import holdfast as hf


class Typed(hf.KeyedFunction):
    output = "user string"
    outputs = {"late": "user string, at long"}
    seen = hf.ValueState("long", default=0)

    def process(self, row: hf.Row, ctx: hf.Context) -> Iterator[tuple[str]]:
        self.seen.value += len(ctx.key) + ctx.epoch
        ctx.emit_to("late", {"user": row.user, "at": ctx.timestamp})
        yield (row["user"],)


class Typos(hf.OperatorFunction):
    output = "n long"

    def process(self, row: hf.Row, ctx: hf.ShardContext) -> Iterator[tuple[int]]:
        yield (ctx.shard % ctx.shards,)
        ctx.key
        ctx.emit_to("late", 5)
        self.typo
"""


def test_a_type_checker_knows_the_context(tmp_path: Path) -> None:
    file = tmp_path / "user_code.py"
    file.write_text(USER_CODE)
    config = Path(__file__).parents[1] / "pyproject.toml"
    said, _, _ = mypy.api.run(["--config-file", str(config), "--hide-error-context", str(file)])
    lines = [line.split(": error: ")[1] for line in said.splitlines() if ": error: " in line]
    codes = [line.rsplit("  ", 1)[1] for line in lines]
    assert codes == ["[attr-defined]", "[arg-type]", "[attr-defined]"], said
    assert '"ShardContext" has no attribute "key"' in lines[0]
    assert '"Typos" has no attribute "typo"' in lines[2]


def test_every_public_error_is_a_holdfast_error() -> None:
    classes = [value for name in PUBLIC if inspect.isclass(value := getattr(holdfast, name))]
    strangers = [c for c in classes if issubclass(c, Exception) and not issubclass(c, holdfast.HoldfastError)]
    assert not strangers
