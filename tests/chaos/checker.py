"""Judges a finished job by what it left behind: the files of its sinks and the checkpoint.

The verdict is true, false or unknown, with reasons. *Unknown* means that the evidence is not all there (the
job has not ended, a file cannot be read), which is never taken for success.
Always true: what is expected is computed here from the formulas of the input alone; nothing is written; the
state is folded from snapshots and deltas with the readers of the stored formats, not with the engine
(holdfast.chaos.independent_reader).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.chaos import independent_reader
from holdfast.chaos.checker import Verdict
from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.errors import HoldfastError
from holdfast.storage.urls import open_storage
from tests.chaos.apps import BUCKETS, LEDGER, Place, Shape

REASONS_MAX = 8
"""Of each kind of wrong, that many are told: the first ones say what happened."""

Row = dict[str, Any]
State = dict[int, Row]
"""Key -> state name -> value."""


@dataclass(frozen=True)
class Finding:
    """A verdict and why. `rows`: how many sink rows it rests on."""

    verdict: Verdict
    reasons: tuple[str, ...] = ()
    rows: int = 0

    def __str__(self) -> str:
        return f"{self.verdict} ({self.rows} rows)" + "".join(f"\n  - {reason}" for reason in self.reasons)


@dataclass(frozen=True)
class Evidence:
    """What a job left behind."""

    committed_events: int
    ledger: dict[int, list[Row]]
    """Sink rows by epoch."""
    buckets: dict[int, list[Row]]
    ledger_states: dict[int, tuple[int, State]]
    """Each commit that can be gone back to -> its last epoch and the state then. The newest counts."""
    bucket_state: State

    @property
    def ledger_state(self) -> State:
        return self.ledger_states[max(self.ledger_states)][1] if self.ledger_states else {}


def check(place: Place, shape: Shape) -> Finding:
    """Read everything and judge it."""
    ledger: dict[int, list[Row]] = {}
    try:
        ledger = sink_rows(place, LEDGER)
        evidence = gather(place, ledger)
    except (HoldfastError, OSError, pa.ArrowException) as problem:
        shown = _shown(ledger)
        wrong = (*_wrong_in_sink(shown, shape), f"the evidence cannot be read: {problem}")
        return Finding(Verdict.FALSE if len(wrong) > 1 else Verdict.UNKNOWN, wrong, len(shown))
    return judge(evidence, shape)


def judge(evidence: Evidence, shape: Shape) -> Finding:
    """Compare the evidence with what the input must give. Pure."""
    rows = _shown(evidence.ledger)
    if not rows:
        return Finding(Verdict.UNKNOWN, ("the sink is empty: nothing was run",))
    wrong = _wrong_in_sink(rows, shape)
    if not wrong and evidence.committed_events < shape.events:
        reason = f"{evidence.committed_events} of {shape.events} events are committed: the job has not ended"
        return Finding(Verdict.UNKNOWN, (reason,), len(rows))
    wrong += [
        *_some(_events(rows, shape)),
        *_some(_final_state(evidence.ledger_state, shape)),
        *_some(_states_beside_sink(evidence)),
        *_some(_buckets(evidence)),
    ]
    return Finding(Verdict.FALSE if wrong else Verdict.TRUE, tuple(wrong), len(rows))


def judge_rows(rows: list[Row], shape: Shape) -> Finding:
    """Only what a sink shows of the ledger, of a job that has ended; the rows of a key in their order."""
    if not rows:
        return Finding(Verdict.UNKNOWN, ("the sink is empty: nothing was run",))
    wrong = [*_wrong_in_sink(rows, shape), *_some(_events(rows, shape))]
    return Finding(Verdict.FALSE if wrong else Verdict.TRUE, tuple(wrong), len(rows))


def _shown(ledger: dict[int, list[Row]]) -> list[Row]:
    return [row for epoch in sorted(ledger) for row in ledger[epoch]]


def _wrong_in_sink(rows: list[Row], shape: Shape) -> list[str]:
    """What is wrong whatever the checkpoint says, and however far the job has got."""
    return [*_some(_sequences(rows, shape)), *_some(_marks(rows))]


def gather(place: Place, ledger: dict[int, list[Row]]) -> Evidence:
    """Read the other sink, too, and fold every retained checkpoint."""
    storage = open_storage(str(place.checkpoint))
    history = History(storage)
    view = history.load()
    return Evidence(
        committed_events=(view.positions.get("events") or [0])[0],
        ledger=ledger,
        buckets=sink_rows(place, BUCKETS),
        ledger_states={
            at.number: (at.last_epoch, _by_single_key(independent_reader.operator_state(storage, at, LEDGER)))
            for at in _retained(history, view)
        },
        bucket_state=_by_single_key(independent_reader.operator_state(storage, view, BUCKETS)),
    )


def sink_rows(place: Place, uid: str) -> dict[int, list[Row]]:
    """The rows of a file sink by epoch. A double may have left several files for one epoch."""
    found: dict[int, list[Row]] = {}
    for path in sorted(place.sink(uid).glob(f"{uid}-out-*.parquet")):
        epoch = int(path.name.removeprefix(f"{uid}-out-")[:12])
        found.setdefault(epoch, []).extend(_read_parquet(path))
    return found


def _retained(history: History, newest: CheckpointView) -> Iterator[CheckpointView]:
    """The commits that can be gone back to; those that a rewind has gone past are not among them."""
    number = newest.number
    while number >= newest.retained_from:
        yield history.view_at(number)
        back_to = history.record(number).rewind_to
        number = number - 1 if back_to is None else back_to


def _by_single_key(state: independent_reader.State) -> State:
    return {key[0]: values for key, values in state.items()}


def _read_parquet(path: Path) -> list[Row]:
    rows: list[Row] = pq.read_table(path).to_pylist()
    return rows


def _some(reasons: Iterable[str]) -> list[str]:
    told = list(reasons)
    left = len(told) - REASONS_MAX
    return told[:REASONS_MAX] + ([f"... and {left} more like these"] if left > 0 else [])


def _events(rows: list[Row], shape: Shape) -> Iterable[str]:
    """Every generated event exactly once."""
    count: dict[int, int] = {}
    for row in rows:
        count[row["event"]] = count.get(row["event"], 0) + 1
    for event in range(shape.events):
        if event not in count:
            yield f"event {event} (key {shape.key_of(event)}) is lost"
    for event, times in count.items():
        if not 0 <= event < shape.events:
            yield f"event {event} was never generated"
        elif times > 1:
            yield f"event {event} (key {shape.key_of(event)}) is there {times} times"


def _sequences(rows: list[Row], shape: Shape) -> Iterable[str]:
    """Per key: numbers without gap or repeat, sums that follow, values of the right events."""
    last: dict[int, tuple[int, int]] = {}
    for row in rows:
        key, event = row["key"], row["event"]
        seq, total = last.get(key, (0, 0))
        if key != shape.key_of(event):
            yield f"event {event} has key {key}, not {shape.key_of(event)}"
        if row["seq"] != seq + 1:
            what = "repeats" if row["seq"] <= seq else "leaves a gap"
            yield f"key {key}: number {row['seq']} (event {event}) after {seq} {what}"
        elif row["total"] != total + shape.value_of(event):
            yield f"key {key}: sum {row['total']} at number {row['seq']}, not {total + shape.value_of(event)}"
        last[key] = (row["seq"], row["total"])


def _marks(rows: list[Row]) -> Iterable[str]:
    """Each row found in the state the very mark that the row before it left."""
    left: dict[int, str] = {}
    for row in rows:
        found, expected = row["before"], left.get(row["key"], "")
        if found != expected:
            yield f"key {row['key']}: number {row['seq']} found mark {found!r}, the sink has {expected!r}"
        left[row["key"]] = row["mark"]


def _final_state(state: State, shape: Shape) -> Iterable[str]:
    """The state is what the input gives."""
    expected: dict[int, tuple[int, int]] = {}
    for event in range(shape.events):
        seq, total = expected.get(shape.key_of(event), (0, 0))
        expected[shape.key_of(event)] = (seq + 1, total + shape.value_of(event))
    for key in sorted(expected.keys() | state.keys()):
        values = state.get(key, {})
        found = (values.get("seq"), values.get("total"))
        if found != expected.get(key):
            yield f"state of key {key} is {found}, not {expected.get(key)}"


def _states_beside_sink(evidence: Evidence) -> Iterable[str]:
    """At every retained commit the state of each key is what the sink's last row of it, up to there, says."""
    for commit, (last_epoch, state) in evidence.ledger_states.items():
        shown = {
            row["key"]: (row["seq"], row["total"], row["mark"])
            for epoch in sorted(evidence.ledger)
            if epoch <= last_epoch
            for row in evidence.ledger[epoch]
        }
        for key in sorted(shown.keys() | state.keys()):
            values = state.get(key, {})
            found = tuple(values.get(name) for name in ("seq", "total", "mark"))
            if found != shown.get(key):
                yield f"commit {commit}: state of key {key} is {found}, the sink shows {shown.get(key)}"


def _buckets(evidence: Evidence) -> Iterable[str]:
    """The second operator saw exactly what the first one gave out, epoch by epoch."""
    running: dict[int, tuple[int, int]] = {}
    for epoch in sorted(evidence.ledger.keys() | evidence.buckets.keys()):
        touched = set()
        for row in evidence.ledger.get(epoch, ()):
            count, seqs = running.get(row["bucket"], (0, 0))
            running[row["bucket"]] = (count + 1, seqs + row["seq"])
            touched.add(row["bucket"])
        expected = sorted((bucket, *running[bucket]) for bucket in touched)
        found = sorted((r["bucket"], r["rows"], r["seqs"]) for r in evidence.buckets.get(epoch, ()))
        if found != expected:
            yield f"epoch {epoch}: buckets {found}, the ledger's rows give {expected}"
    for bucket in sorted(running.keys() | evidence.bucket_state.keys()):
        values = tuple(
            value for struct in evidence.bucket_state.get(bucket, {}).values() for value in struct.values()
        )
        if values != running.get(bucket):
            yield f"state of bucket {bucket} is {values}, the sink gives {running.get(bucket)}"
