"""What every sink promises about columns: refused before anything runs, or shown whatever they hold."""

from __future__ import annotations

from functools import partial

import pyarrow as pa

from holdfast.connectors.contract import RememberingPublisher, SelectiveSink, StagedPart
from holdfast.errors import DefinitionError
from holdfast.tasks.operators.result import cause_of
from holdfast.testing.conformance.promises import NotAsked, Seen, Suite, hold
from holdfast.testing.conformance.sink_case import JOB, UID, SinkCase

COLUMNS: Suite[SinkCase] = Suite()

EXTREMES: dict[str, pa.Array] = {
    "year 294247": pa.array([2**63 - 1], pa.timestamp("us", tz="UTC")),
    "long before year 1": pa.array([-(2**63)], pa.timestamp("us")),
    "last date": pa.array([2**31 - 1], pa.date32()),
    "longest interval": pa.array([-(2**63)], pa.duration("us")),
    "nanosecond": pa.array([86_399_999_999_999], pa.time64("ns")),
    "not a number": pa.array([float("nan")]),
    "binary": pa.array([b"\xff"]),
    "no UTF-8": pa.array([b"a\xff"]).view(pa.string()),
    "nothing": pa.nulls(1),
    "lists": pa.array([[2**63 - 1]], pa.list_(pa.timestamp("us"))),
    "date keys": pa.array([[(2**31 - 1, 1)]], pa.map_(pa.date32(), pa.int64())),
    "binary keys": pa.array([[(b"\xff", 1)]], pa.map_(pa.binary(), pa.int64())),
    "struct keys": pa.array([[({"a": 1}, 1)]], pa.map_(pa.struct([("a", pa.int64())]), pa.int64())),
    "a key twice": pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64())),
}
"""Values that no reader of Python objects can hold, or that few formats can: one column each."""


def _tables() -> list[pa.Table]:
    return [pa.table({"n": [1], name: column}) for name, column in EXTREMES.items()]


@COLUMNS.promise(
    "check-schema-touches-nothing",
    "check_schema leaves no trace",
    "look at the schema alone: commands that only look call it too",
)
def _check_schema_touches_nothing(case: SinkCase) -> None:
    sink = case.sink
    if not isinstance(sink, SelectiveSink):
        raise NotAsked("it has no check_schema")
    for schema in [case.sample.schema, *(table.schema for table in _tables())]:
        _refusal(sink, schema)
    case.expect("after check_schema alone")
    publisher = case.sink.publisher(JOB, UID)
    if isinstance(publisher, RememberingPublisher):
        mark = publisher.mark()
        hold(mark is None, f"mark() is {mark} after check_schema alone")
    through = publisher.published_through()
    hold(through == 0, f"published_through() is {through} after check_schema alone")


@COLUMNS.promise(
    "check-schema",
    "check_schema lets the columns pass that the sink shows, and refuses others with a DefinitionError that "
    "names the column and a remedy after '; '",
    "raise hf.DefinitionError(\"column 'x' is ..., which ... cannot hold; make text of it\")",
)
def _check_schema(case: SinkCase) -> None:
    sink = case.sink
    if not isinstance(sink, SelectiveSink):
        raise NotAsked("it has no check_schema")
    sink.check_schema(case.sample.schema)
    for table in _tables():
        refusal, name = _refusal(sink, table.schema), table.column_names[1]
        if refusal is not None:
            hold("; " in refusal, f"refused without a remedy after '; ': {refusal}")
            named = any(column in refusal for column in (name, "'n'"))
            hold(named, f"column {name!r} was refused without being named: {refusal}")


@COLUMNS.promise(
    "accepted-is-shown",
    "columns that a sink accepts are shown whatever values they hold",
    "work on Arrow columns where Python has no object for a value; refuse in check_schema what cannot be "
    "shown, which without check_schema is nothing",
)
def _accepted_is_shown(case: SinkCase) -> None:
    sink = case.sink
    failures: list[str] = []
    publisher, epoch = case.run(), 0
    for table in _tables():
        if isinstance(sink, SelectiveSink) and _refusal(sink, table.schema) is not None:
            continue
        epoch += 1
        try:
            publisher.publish(epoch, [StagedPart(0, 1, partial(_itself, table))])
        except Exception as error:
            failures.append(f"{table.column_names[1]!r} ({table.schema.field(1).type}): {cause_of(error)}")
    if failures:
        raise Seen("accepted, and then not shown: " + "; ".join(failures))
    if not epoch:
        raise NotAsked("it refuses all columns but its own")


def _itself(table: pa.Table) -> pa.Table:
    return table


def _refusal(sink: SelectiveSink, schema: pa.Schema) -> str | None:
    """Why a sink refuses some columns; None: it does not."""
    try:
        sink.check_schema(schema)
    except DefinitionError as refusal:
        return str(refusal)
    return None
