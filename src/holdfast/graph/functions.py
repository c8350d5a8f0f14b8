"""What a user writes for a stateful operator.

Never here: running it (see tasks.operators).
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, ClassVar, get_args

import pyarrow as pa

from holdfast.errors import DefinitionError
from holdfast.graph.contexts import BatchContext, BroadcastContext, Context, OutputRow, ShardContext
from holdfast.state.cells.declarations import (
    DeclaredState,
    ListState,
    ValueState,
    broadcast_states,
    declared_states,
)
from holdfast.state.cells.timers import EVENT_TIMERS, PROCESSING_TIMERS
from holdfast.state.encoding.row_objects import Row
from holdfast.state.encoding.types import parse_schema

RESERVED_OUTPUT_PREFIX = "!"


class Declaring:
    """What every function has that declares states as class attributes: their names are taken."""

    def __setattr__(self, name: str, value: object) -> None:
        state = getattr(type(self), name, None)
        if isinstance(state, DeclaredState):
            raise TypeError(f"{name!r} is a state, not a variable; write self.{name}{state.written}")
        super().__setattr__(name, value)


class SavedByKey(Declaring):
    """What a function may say about the saving of its keys, where it has `protection=hf.Uncoordinated(...)`.

    Everything here has a default; override what you need.
    """

    def is_dirty(self, ctx: Context) -> bool:
        """Whether the rows that `ctx.key` has just had leave anything to save. Its state is at hand.

        Called once per key and slice. False: the key does not become dirty by them, so they may be lost.
        """
        return True

    def checkpoint(self, ctx: Context) -> bool:
        """Whether `ctx.key`, which is dirty, is to be saved as soon as possible, whatever the schedule says.

        Called once per dirty key and slice, after `is_dirty`. Its state is at hand.
        """
        return False

    def clear_dirty(self, key: bytes) -> None:
        """A save of the key with these canonical bytes became durable. No state is at hand: this is a thread
        of its own. May be called more than once for a save."""

    def serialize_state(self, states: dict[str, Any]) -> bytes:
        """One key's states, by name, as bytes; None where nothing is stored. Called in a thread of its own.

        Without an override states are encoded by their declared types, and follow a change of these.
        """
        raise NotImplementedError

    def restore_state(self, data: bytes) -> dict[str, Any]:
        """What `serialize_state` was given, from what it gave."""
        raise NotImplementedError


class RowsByKey(Declaring):
    """What functions have in common that see one row at a time, with the state of the row's key.

    `output` is the schema of what they yield, `outputs` those of the side outputs of `ctx.emit_to`.
    The function is copied for every slice of rows: what it keeps on `self` besides declared state is lost
    after it.
    """

    output: ClassVar[str]
    outputs: ClassVar[Mapping[str, str]] = {}

    def open(self, ctx: Context) -> None:
        """Prepare for a slice of rows. Called once for each, before its first row; it has no state yet."""

    def on_timer(self, at: datetime, ctx: Context) -> Iterable[OutputRow] | None:
        """Handle a timer that `ctx.timers` was given for this key, with its state: output rows as from
        `process`. A function that has this method has timers.

        Called once for each, after the rows of its key in the epoch, in the order of the times; event timers
        before processing timers, as `ctx.timer` says ("event", "processing"). `at` is the time that was set.
        """
        raise NotImplementedError


class KeyedFunction(RowsByKey, SavedByKey):
    """User code that sees one row at a time, with the state of the row's key."""

    def process(self, row: Row, ctx: Context) -> Iterable[OutputRow] | None:
        """Handle one row: yield (or return an iterable of) output rows, tuples in order or dicts by name.

        Called once per row of a successful epoch, again when the epoch is repeated; rows of a key come one
        after another, in the order of `order_by` where that was asked for.
        """
        raise NotImplementedError


class CoFunction(RowsByKey):
    """User code that sees the rows of two streams, one at a time, with the one state that both share.

    Within an epoch the left rows of a key come before the right ones; where both streams have an `order_by`,
    they come in its order, left before right where it does not tell them apart.
    """

    def process_left(self, row: Row, ctx: Context) -> Iterable[OutputRow] | None:
        """Handle a row of the left stream: output rows as from `KeyedFunction.process`."""
        raise NotImplementedError

    def process_right(self, row: Row, ctx: Context) -> Iterable[OutputRow] | None:
        """Handle a row of the right stream: output rows as from `KeyedFunction.process`."""
        raise NotImplementedError


class BroadcastFunction(RowsByKey):
    """User code that sees keyed rows one at a time, with the state of the row's key, and with states that all
    keys share: those declared as `hf.BroadcastState`, which the rows of a second stream write.

    Within an epoch all rows of the second stream come before those of the keyed one, for every key.
    """

    def open(self, ctx: Context | BroadcastContext) -> None:
        """Prepare for a slice of rows, of either stream. Called once for each, before its first row; it has
        no state yet."""

    def process_broadcast(self, row: Row, ctx: BroadcastContext) -> Iterable[OutputRow] | None:
        """Handle a row of the broadcast stream: write broadcast states; output rows as from `process`.

        Called once per row, in one place for all keys: there is no key here and no state of one. Rows come in
        the order of `broadcast(order_by=...)`; without it in the order in which Spark reads them.
        """
        raise NotImplementedError

    def process(self, row: Row, ctx: Context) -> Iterable[OutputRow] | None:
        """Handle a row of the keyed stream: output rows as from `KeyedFunction.process`. Broadcast states are
        as the broadcast rows of the epoch left them, and read-only."""
        raise NotImplementedError


class BatchFunction(Declaring):
    """User code that sees all rows of a shard's slice at once, as Arrow, with its state as columns.

    `self.<state>.column` is aligned with `ctx.keys`; `ctx.key_index` says which key each row has.
    """

    output: ClassVar[str]

    def open(self, ctx: BatchContext) -> None:
        """Prepare for a slice of rows. Called once for each, before `process`; state cannot be used here."""

    def process(self, rows: pa.Table, ctx: BatchContext) -> pa.Table:
        """Handle a slice: return the output rows. Not called for a shard that got no rows."""
        raise NotImplementedError


class OperatorFunction(Declaring):
    """User code that sees one row at a time, without a key: its state are lists, one of each per shard.

    `output`, `outputs` and what is lost after a slice are as for a KeyedFunction. Which shard sees a row, and
    in which order, is not specified.
    """

    output: ClassVar[str]
    outputs: ClassVar[Mapping[str, str]] = {}

    def open(self, ctx: ShardContext) -> None:
        """Prepare for a slice of rows. Called once for each, before its first row; it has no state yet."""

    def process(self, row: Row, ctx: ShardContext) -> Iterable[OutputRow] | None:
        """Handle one row: yield (or return an iterable of) output rows, tuples in order or dicts by name.

        Called once per row of a successful epoch, again when the epoch is repeated. Not called for a shard
        that got no rows: its lists stay as they are. `ctx.shard` and `ctx.shards` say where this is.
        """
        raise NotImplementedError


DeclaringFunction = KeyedFunction | BatchFunction | OperatorFunction | CoFunction | BroadcastFunction
"""Functions that declare outputs and states as class attributes."""
SINGLE_ROWS = KeyedFunction | OperatorFunction | CoFunction | BroadcastFunction
"""Those of them that see one row at a time."""


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


def has_timers(function: object) -> bool:
    """Whether the user wrote an `on_timer`."""
    return isinstance(function, RowsByKey) and type(function).on_timer is not RowsByKey.on_timer


def handlers(function: DeclaringFunction) -> tuple[str, ...]:
    """The methods that rows are given to, by name."""
    if isinstance(function, CoFunction):
        return "process_left", "process_right"
    return ("process", "process_broadcast") if isinstance(function, BroadcastFunction) else ("process",)


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
    for method in handlers(function):
        bases = get_args(DeclaringFunction)
        if any(getattr(type(function), method) is getattr(base, method, None) for base in bases):
            found.append(f"{name} has no {method} method; write one")
    for state in declared_states(type(function)).values():
        found += _state_mistakes(function, state)
        if has_timers(function) and state.name in (EVENT_TIMERS, PROCESSING_TIMERS):
            found.append(f"{name}.{state.name} has the name under which timers are kept; give it another")
    found += _broadcast_mistakes(function)
    if isinstance(function, KeyedFunction) and overrides(function, "serialize_state") is not overrides(
        function, "restore_state"
    ):
        found.append(f"{name} has one of serialize_state and restore_state; write both or none")
    return found


def _broadcast_mistakes(function: DeclaringFunction) -> Iterator[str]:
    name, shared = type(function).__name__, broadcast_states(type(function))
    if isinstance(function, BroadcastFunction):
        if not shared:
            yield (
                f"{name} declares no broadcast state; add a line such as "
                "rules = hf.BroadcastState('string', 'double')"
            )
        return
    for state in shared:
        yield (
            f"{name}.{state} is a BroadcastState, which only a BroadcastFunction has; derive {name} from it "
            "and say keyed.connect(other.broadcast())"
        )


def gives_no_rows(function: DeclaringFunction) -> bool:
    """Whether the function can be seen to yield nothing and to return nothing but None."""
    called = [*handlers(function), *(["on_timer"] if has_timers(function) else [])]
    return all(_gives_nothing(getattr(type(function), method)) for method in called)


def _gives_nothing(process: Callable[..., object]) -> bool:
    if inspect.isgeneratorfunction(process) or not inspect.isfunction(process):
        return False
    before, returned = None, []
    for step in dis.get_instructions(process):
        if step.opname == "RETURN_CONST":
            returned.append(step.argval)
        elif step.opname == "RETURN_VALUE":
            # One that is jumped to returns what another branch made.
            constant = before is not None and before.opname == "LOAD_CONST" and not step.is_jump_target
            returned.append(before.argval if before is not None and constant else ...)
        before = step
    return bool(returned) and all(value is None for value in returned)


def overrides(function: KeyedFunction, name: str) -> bool:
    """Whether the user wrote this method of SavedByKey."""
    return getattr(type(function), name) is not getattr(SavedByKey, name)


def _state_mistakes(function: DeclaringFunction, state: DeclaredState) -> Iterator[str]:
    name, kind = f"{type(function).__name__}.{state.name}", type(state).__name__
    if isinstance(function, BatchFunction) and not isinstance(state, ValueState):
        yield f"{name} is a {kind}; a BatchFunction can have ValueState only"
    elif isinstance(function, OperatorFunction) and not isinstance(state, ListState):
        yield f"{name} is a {kind}; an OperatorFunction can have ListState only: key the stream for others"
    elif not isinstance(function, OperatorFunction) and getattr(state, "redistribute", None):
        yield f"{name} says redistribute, but state per key moves with its key; leave redistribute out"
