"""One shard whose keys are saved on their own, run epoch by epoch without Spark."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

import holdfast as hf
from holdfast.checkpoint.chain.shard_lines import Line
from holdfast.errors import StorageError
from holdfast.ids import KeyGroup, KeyGroupRange
from holdfast.state.cells.declarations import state_fields
from holdfast.state.contract import Version
from holdfast.state.encoding.keys import GROUP_COLUMN
from holdfast.state.encoding.layout import StateLayout
from holdfast.state.files.saved_key import unpack
from holdfast.state.files.schema_conversion import Lineage
from holdfast.storage.key_saves.contract import StateId, StateStorage, is_later
from holdfast.tasks.keyed import operator_result
from holdfast.tasks.messages import EpochWork, KeyedTask, TaskResult, UncoordinatedResult, Workspace
from holdfast.tasks.uncoordinated import saver

GROUPS = KeyGroupRange(KeyGroup(0), KeyGroup(4))
DEADLINE = 20.0


class Count(hf.KeyedFunction):
    output = "user string, n long"
    n = hf.ValueState("long", default=0)

    def process(self, row: Any, ctx: Any) -> Iterator[tuple[str, int]]:
        self.n.value += 1
        yield row.user, self.n.value


@dataclass
class MemoryStates(StateStorage):
    """Keeps saves in memory and does what the test says: fail, hang, lose nothing."""

    saved: dict[StateId, bytes] = field(default_factory=dict)
    down: bool = False
    fails_next: int = 0
    takes_seconds: float = 0.0
    calls: Counter[str] = field(default_factory=Counter)
    open: threading.Event = field(default_factory=threading.Event)
    """Cleared: every call waits for it."""

    def __post_init__(self) -> None:
        self.open.set()

    def save(self, id: StateId, data: bytes) -> None:
        self._enter("save")
        if id in self.saved and is_later(self.saved[id], data):
            raise self.superseded(id)
        self.saved[id] = data

    def fetch(self, id: StateId) -> bytes | None:
        self._enter("fetch")
        return self.saved.get(id)

    def keys(self, operator: str) -> list[StateId]:
        return [id for id in self.saved if id.operator == operator]

    def _enter(self, what: str) -> None:
        self.calls[what] += 1
        assert self.open.wait(DEADLINE), "nobody let the storage go on"
        time.sleep(self.takes_seconds)
        if self.down or self.fails_next > 0:
            self.fails_next -= 1
            raise StorageError("the storage is down, says the test")

    def events(self) -> dict[str, int]:
        """User -> events in its save."""
        return {id.key[5:].decode(): unpack(data, id).events for id, data in self.saved.items()}


def uncoordinated(storage: StateStorage, **settings: Any) -> hf.Uncoordinated:
    if "every" not in settings and "events" not in settings:
        settings["every"] = "20s"
    return hf.Uncoordinated(storage=storage, **settings)


class Shard:
    """Runs epochs over one working directory, as a driver would have them run."""

    def __init__(
        self, root: Path, settings: hf.Uncoordinated, function: Any = None, run: str = "run"
    ) -> None:
        self.root, self.settings, self.function, self.run_id = root, settings, function or Count(), run
        layout = StateLayout("op", pa.schema([("user", pa.string())]), state_fields(type(self.function)))
        self.lineage = Lineage.begin(layout)
        self.version = Version(epoch=0, attempt=0, result="")
        self.now_ms = 1_000_000
        self.epochs = 0
        self.term = 1
        self.last: UncoordinatedResult | None = None

    def epoch(self, users: Iterable[str], after_ms: int = 1_000, chosen: bool = True) -> dict[str, int]:
        """Run one epoch; gives the last `n` of each user."""
        self.now_ms += after_ms
        result = self.result(list(users))
        assert result.failure is None, result.failure
        assert result.uncoordinated is not None
        self.last = result.uncoordinated
        if chosen:
            assert result.version is not None
            self.version, self.epochs = result.version, self.epochs + 1
        payload = result.outputs[0].payload
        assert payload.inline is not None
        with pa.ipc.open_stream(payload.inline) as reader:
            rows = reader.read_all().to_pylist()
        return {row["user"]: row["n"] for row in rows}

    def result(self, users: list[str]) -> TaskResult:
        group = [sum(user.encode()) % GROUPS.end for user in users]
        batch = pa.record_batch(
            [pa.array(users, pa.string()), pa.array(group, pa.int32())], ["user", GROUP_COLUMN]
        )
        return operator_result(self.task(), 0, [batch])

    def task(self) -> KeyedTask:
        workspace = Workspace("job", str(self.root / "checkpoint"), str(self.root / "working"), "lmdb")
        return KeyedTask(
            work=EpochWork(workspace, self.epochs + 1, 1, self.run_id, self.now_ms),
            uid="op",
            committed=0,
            function=self.function,
            lineage=self.lineage,
            key=("user",),
            order_by=(),
            input=pa.schema([("user", pa.string())]),
            on_error="fail",
            shards=(Line(GROUPS, self.version, (), ()),),
            outputs=("",),
            saves_state=True,
            uncoordinated=self.settings,
            term=self.term,
        )

    @property
    def saver(self) -> saver.Saver:
        return saver._savers["job", "op"]

    def settle(self) -> None:
        """Wait until no save is under way."""
        for flight in self.saver._flights.values():
            assert flight.wait(DEADLINE), "a save does not end"

    def lose_copy(self, run: str = "other") -> None:
        """What is left when process and disk are gone: a new directory, new threads, the same versions."""
        self.root = self.root / "after"
        self.run_id = run
        saver._savers.clear()

    def with_settings(self, **settings: Any) -> None:
        self.settings = replace(self.settings, **settings)
        self.run_id += "'"
