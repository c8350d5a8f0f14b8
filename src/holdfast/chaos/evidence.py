"""Reads what a round left behind: the recordings of its sinks, and the state in its checkpoint."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.chaos.checker import Left
from holdfast.chaos.comparable_state import comparable
from holdfast.chaos.independent_reader import State, operator_state
from holdfast.chaos.inside.disturbances import CHECKPOINT
from holdfast.chaos.inside.recording_sinks import FILES, SINKS, read_calls, read_shown
from holdfast.chaos.shown_rows import Row, SinkLeft, SinkShape
from holdfast.checkpoint.chain.history import History
from holdfast.errors import HoldfastError
from holdfast.graph.aggregates import Aggregation
from holdfast.graph.job_graph import LATE_ROWS, Graph, Node, OperatorNode, OutputNode, SinkNode, parents_of
from holdfast.graph.window_functions import WindowProcess
from holdfast.graph.windows import (
    LATE_WATERMARK,
    REVISION,
    WINDOW_COLUMNS,
    WINDOW_NUMBER,
    CountWindow,
    Windowed,
)
from holdfast.storage.urls import open_storage


def sink_shapes(graph: Graph) -> list[SinkShape]:
    """How the rows of each sink of a job can be compared."""
    return [_shape(node) for node in graph.sinks]


def _shape(node: SinkNode) -> SinkShape:
    parent = node.parent
    shape = SinkShape(uid=node.uid, dedupes=node.sink.exactly_once, stateless=not _has_operator(parent))
    if isinstance(parent, OutputNode) and parent.name == LATE_ROWS:
        return replace(shape, passing=(LATE_WATERMARK,))
    if not isinstance(parent, OperatorNode):
        return shape
    function = parent.function
    if isinstance(function, Aggregation):
        return replace(shape, key=parent.key)
    if isinstance(function, Windowed):
        counted = isinstance(function.window, CountWindow)
        return replace(
            shape,
            key=(*parent.key, *((WINDOW_NUMBER,) if counted else WINDOW_COLUMNS)),
            windows=True,
            once=not function.lateness_us and function.emit_every is None,
            several=isinstance(function.computation, WindowProcess),
            passing=(REVISION,),
        )
    return shape


def _has_operator(node: Node) -> bool:
    return isinstance(node, OperatorNode) or any(map(_has_operator, parents_of(node)))


def read_left(directory: Path, sinks: list[SinkShape], *, ended: bool, broken: str = "") -> Left:
    """Everything that the checker looks at. What cannot be read is told, not raised."""
    unreadable: list[str] = []
    left: dict[str, SinkLeft] = {}
    for shape in sinks:
        try:
            left[shape.uid] = sink_left(directory, shape.uid)
        except (OSError, ValueError, pa.ArrowException) as problem:
            unreadable.append(f"sink {shape.uid} cannot be read: {problem}")
    last_epoch = 0
    states: dict[str, State] = {}
    try:
        last_epoch, states = checkpoint_left(directory / CHECKPOINT)
    except (HoldfastError, OSError, pa.ArrowException) as problem:
        unreadable.append(f"the checkpoint cannot be read: {problem}")
    return Left(
        ended=ended,
        last_epoch=last_epoch,
        sinks=left,
        states=states,
        unreadable=tuple(unreadable),
        broken=broken,
    )


def rows_read(directory: Path) -> int:
    """How many rows of its sources a job has committed."""
    return History(open_storage(str(directory / CHECKPOINT))).load().rows


def checkpoint_left(checkpoint: Path) -> tuple[int, dict[str, State]]:
    """The last committed epoch, and the state of each operator then, as it can be compared."""
    storage = open_storage(str(checkpoint))
    view = History(storage).load()
    states = {
        operator.uid: comparable(operator_state(storage, view, operator.uid), operator)
        for operator in view.operators
    }
    return view.last_epoch, states


def sink_left(directory: Path, uid: str) -> SinkLeft:
    """What one sink of a round was given and shows."""
    recorded = directory / SINKS / uid
    calls = read_calls(recorded)
    tables = read_shown(recorded)
    conflicts = sorted({int(path.name[:12]) for path in recorded.glob("[0-9]*-*.arrow")})
    shown = {epoch: [_rows(table) for table in given] for epoch, given in tables.items()}
    files = directory / FILES / uid
    if files.exists():
        shown = _file_rows(files, uid)
    return SinkLeft(shown=shown, given=frozenset(call.epoch for call in calls), conflicts=tuple(conflicts))


def _rows(table: pa.Table) -> list[Row]:
    rows: list[Row] = table.to_pylist(maps_as_pydicts="lossy")
    return rows


def _file_rows(directory: Path, uid: str) -> dict[int, list[list[Row]]]:
    """What a FileSink of the user's shows."""
    shown: dict[int, list[list[Row]]] = {}
    for path in sorted(directory.glob(f"{uid}-[0-9]*.*")):
        epoch = int(path.name.removeprefix(f"{uid}-")[:12])
        shown.setdefault(epoch, []).append(_read(path))
    return shown


def _read(path: Path) -> list[Row]:
    if path.suffix == ".parquet":
        return _rows(pq.read_table(path))
    with path.open() as file:
        if path.suffix == ".json":
            rows: list[Any] = [json.loads(line) for line in file]
            return rows
        return list(csv.DictReader(file))
