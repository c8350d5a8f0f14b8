"""What a user writes for a stateful operator.

Never here: running it (see engine.operators).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, get_args

import pyarrow as pa

from holdfast.errors import DefinitionError
from holdfast.state.handles import DeclaredState, ListState, ValueState, declared_states
from holdfast.state.types import parse_schema

RESERVED_OUTPUT_PREFIX = "!"


class KeyedFunction:
    """User code that sees one row at a time, with the state of the row's key.

    `output` is the schema of what `process` yields, `outputs` those of the side outputs of `ctx.emit_to`.
    The function is copied for every slice of rows: what it keeps on `self` besides declared state is lost
    after it.
    """

    output: ClassVar[str]
    outputs: ClassVar[Mapping[str, str]] = {}

    def open(self, ctx: Any) -> None:
        """Prepare for a slice of rows. Called once for each, before its first row; it has no state yet."""

    def process(self, row: Any, ctx: Any) -> Iterable[Any] | None:
        """Handle one row: yield (or return an iterable of) output rows, tuples by place or dicts by name.

        Called once per row of a successful epoch, again when the epoch is repeated; rows of a key come one
        after another, in the order of `order_by` where that was asked for.
        """
        raise NotImplementedError


class BatchFunction:
    """User code that sees all rows of a shard's slice at once, as Arrow, with its state as columns.

    `self.<state>.column` is aligned with `ctx.keys`; `ctx.key_index` says which key each row has.
    """

    output: ClassVar[str]

    def open(self, ctx: Any) -> None:
        """Prepare for a slice of rows. Called once for each, before `process`; state cannot be used here."""

    def process(self, rows: pa.Table, ctx: Any) -> pa.Table:
        """Handle a slice: return the output rows. Not called for a shard that got no rows."""
        raise NotImplementedError


class OperatorFunction:
    """User code that sees one row at a time, without a key: its state are lists, one of each per shard.

    `output`, `outputs` and what is lost after a slice are as for a KeyedFunction. Which shard sees a row, and
    in which order, is not specified.
    """

    output: ClassVar[str]
    outputs: ClassVar[Mapping[str, str]] = {}

    def open(self, ctx: Any) -> None:
        """Prepare for a slice of rows. Called once for each, before its first row; it has no state yet."""

    def process(self, row: Any, ctx: Any) -> Iterable[Any] | None:
        """Handle one row: yield (or return an iterable of) output rows, tuples by place or dicts by name.

        Called once per row of a successful epoch, again when the epoch is repeated. Not called for a shard
        that got no rows: its lists stay as they are. `ctx.shard` and `ctx.shards` say where this is.
        """
        raise NotImplementedError


DeclaringFunction = KeyedFunction | BatchFunction | OperatorFunction
"""Functions that declare outputs and states as class attributes."""


def output_schema(function: DeclaringFunction) -> pa.Schema:
    """The declared schema of the main output."""
    declared = getattr(function, "output", None)
    if not isinstance(declared, str):
        name = type(function).__name__
        raise DefinitionError(f"{name} declares no output; add a line such as output = 'k string, n long'")
    return parse_schema(declared)


def side_schemas(function: DeclaringFunction) -> dict[str, pa.Schema]:
    """The declared schemas of the side outputs, by name."""
    return {name: parse_schema(ddl) for name, ddl in getattr(function, "outputs", {}).items()}


def mistakes(function: DeclaringFunction) -> list[str]:
    """Everything wrong with the declaration of a function, a line each."""
    found = []
    name = type(function).__name__
    for schema_of in (output_schema, side_schemas):
        try:
            schema_of(function)
        except DefinitionError as mistake:
            found.append(str(mistake))
    for side in getattr(function, "outputs", {}):
        if not side or side.startswith(RESERVED_OUTPUT_PREFIX):
            found.append(f"{name} names a side output {side!r}; names are not empty or begin with '!'")
    if any(type(function).process is base.process for base in get_args(DeclaringFunction)):
        found.append(f"{name} has no process method; write one")
    for state in declared_states(type(function)).values():
        found += _state_mistakes(function, state)
    return found


def _state_mistakes(function: DeclaringFunction, state: DeclaredState) -> Iterator[str]:
    name, kind = f"{type(function).__name__}.{state.name}", type(state).__name__
    if isinstance(function, BatchFunction) and not isinstance(state, ValueState):
        yield f"{name} is a {kind}; a BatchFunction can have ValueState only"
    elif isinstance(function, OperatorFunction) and not isinstance(state, ListState):
        yield f"{name} is a {kind}; an OperatorFunction can have ListState only: key the stream for others"
    elif not isinstance(function, OperatorFunction) and getattr(state, "redistribute", None):
        yield f"{name} says redistribute, but state per key moves with its key; leave redistribute out"
