"""State as the user declares it: class attributes of a function.

    class Totals(hf.KeyedFunction):
        total = hf.ValueState("long", default=0)

A declaration is shared by every instance and holds no state. A runner copies the function and puts a cell
under the declared name of the copy (see cells): inside `process` the name means the state of the row's key.

What is read can be written back. Arrays are lists, maps are dicts, structs are rows (a dict or a tuple may be
written for one). A list or dict that was read may be changed in place as long as its key is at hand: that
counts as written. Assigning keeps a copy.

Every kind may have a `ttl`: a value that was not written for so long (with `since="read"`: neither read nor
written) is gone, by the time of the plan or, with `clock="event"`, by the watermark. Items of a list and
entries of a map expire one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pyarrow as pa

from holdfast.errors import DefinitionError
from holdfast.state.cells.redistribution import REDISTRIBUTE, Redistribute
from holdfast.state.encoding.coercion import Misfit, settler
from holdfast.state.encoding.layout import StateField, StateKind
from holdfast.state.encoding.ttl import Since, Ttl, TtlClock
from holdfast.state.encoding.types import parse_type, relaxed, type_ddl


class DeclaredState:
    """What every declaration has: a name, a kind, and the Arrow type that is stored."""

    kind: ClassVar[StateKind] = StateKind.VALUE
    written: ClassVar[str] = ".add(...)"
    """How the user's code writes it."""

    ttl: Ttl | None = None
    # On the instance only where one is declared: jobs without a ttl keep their fingerprints.

    def __init__(self, type: pa.DataType, was: str | None = None, ttl: Ttl | None = None) -> None:
        """`was`: the name under which older code kept this state."""
        self.name = ""
        self.type = relaxed(type)
        self.was = was
        if ttl is not None:
            self.ttl = ttl

    def __set_name__(self, owner: type, name: str) -> None:
        if self.name and self.name != name:
            raise DefinitionError(
                f"one state is both {self.name!r} and {name!r} of {owner.__name__}; declare one for each"
            )
        self.name = name

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        # No __set__: once a cell is in the instance's own dict, Python finds that first and never comes here.
        if instance is None:
            return self
        raise DefinitionError(f"state {self.name!r} has a value only inside process(); move this use there")

    def field(self, id: int) -> StateField:
        """The stored form of this declaration under the given state id."""
        return StateField(id, self.name, self.kind, self.type, self.ttl)


class ValueState(DeclaredState):
    """One value per key. `.value` reads and assigns, `.clear()` forgets.

    Where nothing is stored `.value` is the default. None is a value like others: assigning it stores a null.
    """

    written = ".value = ..."

    def __init__(
        self,
        type: str,
        default: object = None,
        *,
        ttl: str | None = None,
        since: Since | None = None,
        clock: TtlClock | None = None,
        was: str | None = None,
    ) -> None:
        super().__init__(parse_type(type), was, Ttl.declared(ttl, since, clock))
        try:
            self.default = settler(self.type)(default)
        except Misfit as misfit:
            raise DefinitionError(misfit.text("the default of a ValueState", self.type)) from misfit


class ListState(DeclaredState):
    """Items per key, in the order of adding: `append`, `extend`, `replace`, `clear`, iteration, `len`.

    In an OperatorFunction: items per shard, and `redistribute` says what becomes of them when the parallelism
    changes: "split" (also where nothing is said) deals all items out, "union" gives all of them to every
    shard.
    """

    kind = StateKind.LIST
    written = ".replace([...])"

    def __init__(
        self,
        type: str,
        *,
        redistribute: Redistribute | None = None,
        ttl: str | None = None,
        since: Since | None = None,
        clock: TtlClock | None = None,
        was: str | None = None,
    ) -> None:
        super().__init__(parse_type(type), was, Ttl.declared(ttl, since, clock))
        if redistribute not in (None, *REDISTRIBUTE):
            known = ", ".join(map(repr, REDISTRIBUTE))
            raise DefinitionError(f"redistribute={redistribute!r} is not known; use one of {known}")
        self.redistribute = redistribute


class MapState(DeclaredState):
    """A dict per key, each entry stored by itself: reading one reads no other; iteration and `len` scan."""

    kind = StateKind.MAP
    written = "[key] = ..."

    def __init__(
        self,
        key: str,
        value: str,
        *,
        ttl: str | None = None,
        since: Since | None = None,
        clock: TtlClock | None = None,
        was: str | None = None,
    ) -> None:
        key_type = parse_type(key)
        if pa.types.is_nested(key_type):
            raise DefinitionError(f"{type_ddl(key_type)} cannot be the key of a map state; use a plain type")
        super().__init__(pa.map_(key_type, parse_type(value)), was, Ttl.declared(ttl, since, clock))


class BroadcastState(DeclaredState):
    """A dict that all keys of a BroadcastFunction share: `process_broadcast` writes it, `process` and
    `on_timer` read it.

    It is stored whole whenever it has changed, and every task that has rows reads it: thousands of entries
    are fine, millions are not. Its entries are in no particular order.
    """

    kind = StateKind.LIST
    written = "[key] = ... in process_broadcast"

    def __init__(self, key: str, value: str, *, was: str | None = None) -> None:
        key_type = parse_type(key)
        if pa.types.is_nested(key_type) or pa.types.is_floating(key_type):
            ddl = type_ddl(key_type)
            raise DefinitionError(
                f"{ddl} cannot be the key of a broadcast state; use a plain type such as string or long"
            )
        super().__init__(pa.struct([("key", key_type), ("value", parse_type(value))]), was)


class ReducingState(DeclaredState):
    """One value per key, made by `fn(so far, new)`: `.add(x)`, `.value` (None before any), `.clear()`."""

    def __init__(
        self,
        type: str,
        fn: Callable[[Any, Any], Any],
        *,
        ttl: str | None = None,
        since: Since | None = None,
        clock: TtlClock | None = None,
        was: str | None = None,
    ) -> None:
        super().__init__(parse_type(type), was, Ttl.declared(ttl, since, clock))
        self.fn = fn


class AggregatingState(DeclaredState):
    """An accumulator of `type` per key: `.add(x)`, `.value` (None before the first `add`), `.clear()`.

    `create()` gives a new accumulator, `add(accumulator, x)` returns the next one, `merge(a, b)` joins two,
    `result(accumulator)` is what `.value` shows.
    """

    def __init__(
        self,
        type: str,
        *,
        create: Callable[[], Any],
        add: Callable[[Any, Any], Any],
        merge: Callable[[Any, Any], Any],
        result: Callable[[Any], Any],
        ttl: str | None = None,
        since: Since | None = None,
        clock: TtlClock | None = None,
        was: str | None = None,
    ) -> None:
        super().__init__(parse_type(type), was, Ttl.declared(ttl, since, clock))
        self.create, self.add, self.merge, self.result = create, add, merge, result


def declared_states(owner: type) -> dict[str, DeclaredState]:
    """The states of a class that are kept per key, or per shard, by name, inherited ones first, in the order
    of their declaration."""
    return {
        name: state for name, state in _all_states(owner).items() if not isinstance(state, BroadcastState)
    }


def broadcast_states(owner: type) -> dict[str, BroadcastState]:
    """The states of a class that all keys share, in the same order."""
    return {name: state for name, state in _all_states(owner).items() if isinstance(state, BroadcastState)}


def _all_states(owner: type) -> dict[str, DeclaredState]:
    found: dict[str, DeclaredState] = {}
    for base in reversed(owner.__mro__):
        for name, attribute in vars(base).items():
            found.pop(name, None)
            if isinstance(attribute, DeclaredState):
                found[name] = attribute
    return found


def state_fields(owner: type) -> tuple[StateField, ...]:
    """The stored form of every state of a class that is kept per key, or per shard, numbered from 1."""
    return _fields(declared_states(owner))


def broadcast_fields(owner: type) -> tuple[StateField, ...]:
    """The stored form of every state that all keys share: lists of entries, numbered from 1."""
    return _fields(broadcast_states(owner))


def _fields(states: Mapping[str, DeclaredState]) -> tuple[StateField, ...]:
    return tuple(state.field(id) for id, state in enumerate(states.values(), start=1))
