"""The user's job with sinks that remember: every epoch that was shown, whole, and every call that showed it.

    sinks/<uid>/<epoch, 12 digits>.arrow           what is shown: its first publication, whole or not at all
    sinks/<uid>/<epoch, 12 digits>-<digest>.arrow  the epoch published again with other rows: never right
    sinks/<uid>/<epoch, 12 digits>+<unique>.arrow  a repetition, in a sink that cannot recognise one
    sinks/<uid>/calls.jsonl                        one line for each call of `publish`, after it

Always true: rows and calls are judged apart from what the user's sink makes of them; a recorded sink does
not tell what it shows, so that recovery publishes again whatever no commit says was published.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from holdfast.connectors.contract import Publisher, Sink, StagedPart
from holdfast.connectors.files.sink import FileSink
from holdfast.graph.job_graph import Graph, Node, SinkNode
from holdfast.runtime.job import Job

SINKS, FILES, CALLS = "sinks", "files", "calls.jsonl"


class RecordedJob(Job):
    """`job`, with each sink recorded below `directory`.

    `real_sinks`: the user's own sinks are written, too. A FileSink then gets a directory of the round, so
    that rounds do not meet; any other is left as it is, and finds the round in HOLDFAST_CHAOS.
    """

    def __init__(self, job: Job, directory: Path, *, real_sinks: bool) -> None:
        super().__init__(job.name)
        nodes = job.graph().nodes
        self._recorded = replace(
            job.graph(), nodes=tuple(_recorded(node, directory, real_sinks) for node in nodes)
        )

    def graph(self) -> Graph:
        return self._recorded


def _recorded(node: Node, directory: Path, real_sinks: bool) -> Node:
    if not isinstance(node, SinkNode):
        return node
    real = None
    if real_sinks:
        real = node.sink
        if isinstance(real, FileSink):
            real = FileSink(directory / FILES / node.uid, format=real.format)
    return replace(node, sink=RecordingSink(directory / SINKS, node.sink.exactly_once, real))


class RecordingSink:
    """Promises what the user's sink promises."""

    def __init__(self, path: Path, exactly_once: bool, real: Sink | None) -> None:
        self.path, self.exactly_once, self.real = str(path), exactly_once, real

    def publisher(self, job: str, uid: str) -> RecordingPublisher:
        directory = Path(self.path, uid)
        directory.mkdir(parents=True, exist_ok=True)
        real = self.real.publisher(job, uid) if self.real else None
        return RecordingPublisher(directory, self.exactly_once, real)


class RecordingPublisher:
    def __init__(self, directory: Path, exactly_once: bool, real: Publisher | None) -> None:
        self._directory, self._exactly_once, self._real = directory, exactly_once, real

    def published_through(self) -> int:
        return self._real.published_through() if self._real else 0

    def publish(self, epoch: int, parts: Sequence[StagedPart]) -> None:
        if self._real is not None:
            self._real.publish(epoch, parts)
        tables = [part.load() for part in sorted(parts, key=lambda part: part.part) if part.rows]
        data = _packed(tables)
        digest = hashlib.blake2b(data, digest_size=8).hexdigest()
        outcome = self._show(epoch, data, digest) if tables else "empty"
        rows = sum(table.num_rows for table in tables)
        line = json.dumps({"epoch": epoch, "rows": rows, "digest": digest, "shown": outcome})
        with (self._directory / CALLS).open("a") as file:
            file.write(line + "\n")

    def close(self) -> None:
        if self._real is not None:
            self._real.close()

    def _show(self, epoch: int, data: bytes, digest: str) -> str:
        name = f"{epoch:012d}"
        if _put_new(self._directory / f"{name}.arrow", data):
            return "new"
        if not self._exactly_once:
            _put_new(self._directory / f"{name}+{uuid.uuid4().hex}.arrow", data)
            return "again"
        if (self._directory / f"{name}.arrow").read_bytes() == data:
            return "same"
        _put_new(self._directory / f"{name}-{digest}.arrow", data)
        return "other"


@dataclass(frozen=True)
class Call:
    """One call of `publish`, as it ended."""

    epoch: int
    rows: int
    digest: str
    shown: str


def read_calls(directory: Path) -> list[Call]:
    """The calls of one sink. A line that was cut short by a kill is passed over."""
    path = directory / CALLS
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [Call(**json.loads(line)) for line in lines if line.endswith("}\n") and line.startswith("{")]


def read_shown(directory: Path) -> dict[int, list[pa.Table]]:
    """Epoch -> what one sink shows of it, each repetition a table of its own."""
    shown: dict[int, list[pa.Table]] = {}
    for path in sorted(directory.glob("[0-9]*.arrow")):
        with pa.ipc.open_stream(path.read_bytes()) as reader:
            shown.setdefault(int(path.name[:12]), []).append(reader.read_all())
    return shown


def _packed(tables: Sequence[pa.Table]) -> bytes:
    if not tables:
        return b""
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, tables[0].schema) as writer:
        for table in tables:
            writer.write_table(table)
    return bytes(out.getvalue())


def _put_new(path: Path, data: bytes) -> bool:
    """Whole, at one instant, unless the name is taken. Not synced: only processes die here."""
    draft = path.with_name(f".{uuid.uuid4().hex}")
    draft.write_bytes(data)
    try:
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    return True
