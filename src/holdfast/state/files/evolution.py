"""Whether the state that older code left behind can become the state that newer code declares.

Allowed: states added; states renamed (`was=`); struct fields added, matched by name; numbers widened, at any
depth; a ttl added, removed or changed. With leave to drop: states and struct fields removed. Everything else,
also another aggregate under the name of one that is stored, is a problem, told with what was stored, what is
declared, and a remedy; all problems at once.
Always true: nothing is touched; a state keeps its id, and an id that was ever used is never given again.
Never here: converting (see conversion).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import pyarrow as pa

from holdfast.state.encoding.layout import STATE_ID_MAX, StateField, StateKind, StateLayout
from holdfast.state.encoding.ttl import TTL_MAX_MS, Ttl
from holdfast.state.encoding.types import is_variant, type_ddl
from holdfast.state.files.schema_conversion import Generation, Lineage

_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}
WINDOW_KEPT = "(window)"
"""Under this name stands, beside the aggregates of a state, which windows it is of."""
LATENESS_KEPT = "(lateness)"
"""Under this name, for how many ms it holds them after they have closed."""
_DROP = "or start with allow_dropped_state=True to give it up"


@dataclass(frozen=True)
class Declared:
    """What code declares of one operator: ids in `layout` mean nothing, names do."""

    layout: StateLayout
    was: Mapping[str, str] = field(default_factory=dict)
    """State name -> the name that older code had for it."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    aggregates: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """State name -> field -> the aggregate that it belongs to, such as `max(amount)`."""
    dispensable: frozenset[str] = frozenset()
    """States of which nothing is lost when they are dropped."""

    @property
    def begun(self) -> Lineage:
        """The lineage of an operator that has no state yet."""
        return Lineage((Generation(self.layout, aggregates=self.aggregates_of(self.layout)),))

    def aggregates_of(self, layout: StateLayout) -> dict[int, Mapping[str, str]]:
        """By the ids that the states have in `layout`."""
        return {f.id: self.aggregates[f.name] for f in layout.fields if f.name in self.aggregates}


class What(StrEnum):
    KEPT = "kept"
    ADDED = "added"
    CONVERTED = "converted"
    RENAMED = "renamed"
    DROPPED = "dropped"
    REFUSED = "refused"
    """There is a problem with it."""


@dataclass(frozen=True)
class StateChange:
    """What becomes of one state: its name now (or, if dropped, until now), and more in words."""

    state: str
    what: What
    detail: str = ""


@dataclass(frozen=True)
class Evolution:
    """The lineage to go on with, what changes, and every reason why it cannot be. With problems, the lineage
    means nothing.
    """

    lineage: Lineage
    changes: tuple[StateChange, ...]
    problems: tuple[str, ...] = ()


def evolve(stored: Lineage, declared: Declared, allow_dropped_state: bool) -> Evolution:
    """Decide how the operator's state goes on under `declared`."""
    return _Evolving(stored, declared, allow_dropped_state).run()


class _Evolving:
    def __init__(self, stored: Lineage, declared: Declared, allow_dropped_state: bool) -> None:
        self.stored, self.declared, self.may_drop = stored, declared, allow_dropped_state
        self.uid = declared.layout.operator
        self.changes: list[StateChange] = []
        self.problems: list[str] = []
        self.refused: set[str] = set()

    def run(self) -> Evolution:
        before, now = self.stored.layout, self.declared.layout
        self._check_key(before, now)
        sources = self._sources()
        used = [f.id for generation in self.stored.generations for f in generation.layout.fields]
        next_id = max(used, default=0) + 1
        fields, fills = [], {}
        for state in now.fields:
            old = sources.get(state.name)
            if old is None:
                self.changes.append(StateChange(state.name, What.ADDED, shown(state)))
                if next_id > STATE_ID_MAX:
                    self._problem(state.name, f"needs an id above {STATE_ID_MAX}; use a new uid")
                    continue
                fields.append(replace(state, id=next_id))
                next_id += 1
            else:
                fields.append(replace(state, id=old.id, ttl=_kept_ttl(old, state)))
                if (fill := self._compare(old, state)) is not None:
                    fills[old.id] = fill
        self._drop({old.name for old in sources.values()})
        layout = StateLayout(
            now.operator, now.key, tuple(sorted(fields, key=lambda f: f.id)), before.generation + 1
        )
        aggregates = self.declared.aggregates_of(layout)
        if layout.schema_rows() != before.schema_rows():
            after = (*self.stored.generations, Generation(layout, fills, aggregates))
        else:
            *earlier, last = self.stored.generations
            after = (*earlier, replace(last, aggregates=aggregates))
        changes = (
            replace(each, what=What.REFUSED) if each.state in self.refused else each for each in self.changes
        )
        return Evolution(Lineage(after), tuple(changes), tuple(self.problems))

    def _problem(self, state: str, text: str) -> None:
        self.refused.add(state)
        self.problems.append(f"state {state!r} of operator {self.uid!r} {text}")

    def _check_key(self, before: StateLayout, now: StateLayout) -> None:
        old, new = before.schema_rows()[0], now.schema_rows()[0]
        if old != new:
            self.problems.append(
                f"operator {self.uid!r} is keyed by {_columns(new)}, its stored state by {_columns(old)}; "
                "key it as it was, or write its state anew by the new key, with Savepoint.edit"
            )
            self.refused.update(before.by_name, now.by_name)

    def _sources(self) -> dict[str, StateField]:
        """Declared name -> the stored state that it goes on with."""
        stored, declared = self.stored.layout.by_name, self.declared.layout.by_name
        found: dict[str, StateField] = {}
        taken: dict[str, str] = {}
        for name in declared:
            was = self.declared.was.get(name)
            if name in stored:
                found[name] = stored[name]
            elif was is not None and was in stored:
                if was in declared or was in taken:
                    other = was if was in declared else taken[was]
                    self._problem(name, f"was {was!r}, which {other!r} is too; say of one state only")
                    continue
                found[name], taken[was] = stored[was], name
        return found

    def _compare(self, old: StateField, new: StateField) -> bytes | None:
        """Note what changes. Gives the value whose fields fill new ones, if there are new ones."""
        if old.kind is not new.kind:
            self._problem(
                new.name,
                f"is declared as {shown(new)}, the checkpoint holds {shown(old)}; "
                "declare it as it was, or give the new one another name",
            )
            return None
        default = self.declared.defaults.get(new.name) if new.kind is StateKind.VALUE else None
        finding = _Finding()
        _walk(old.type, new.type, "", default, finding, of_map_state=new.is_map)
        for text in finding.problems:
            between = f"is declared as {shown(new)}, the checkpoint holds {shown(old)}: {text}"
            self._problem(new.name, f"{between}; declare it as it was, or give the new one another name")
        if finding.dropped and not self.may_drop:
            names = ", ".join(finding.dropped)
            self._problem(
                new.name,
                f"is declared as {shown(new)}, the checkpoint holds {shown(old)}: {names} would be lost; "
                f"declare it again, {_DROP}",
            )
        self._check_aggregates(old, new)
        self._note(old, new, finding)
        if default is not None and finding.added_at_top:
            return new.codec.encode_one(default)
        return None

    def _check_aggregates(self, old: StateField, new: StateField) -> None:
        """A value of one aggregate means nothing to another, though both are kept in a field of one name."""
        known = self.stored.generations[-1].aggregates.get(old.id, {})
        changed: dict[tuple[str, str], str] = {}
        self._check_lateness(new.name, known)
        for name, declared in self.declared.aggregates.get(new.name, {}).items():
            if name != LATENESS_KEPT and known.get(name, declared) != declared:
                changed.setdefault((known[name], declared), name)
        for (stored, declared), name in changed.items():
            if name == WINDOW_KEPT:
                self._problem(
                    new.name,
                    f"holds {stored}, and {declared} are declared; declare them as they were, or give the "
                    "operator another uid, which begins with no state",
                )
                continue
            self._problem(
                new.name,
                f"holds {stored} in {name!r}, which is declared as {declared}; declare it as it was, give "
                "the new aggregate another name, or, if only the column was renamed, rename it back in a "
                "transform",
            )

    def _check_lateness(self, state: str, known: Mapping[str, str]) -> None:
        """Of windows that were let go of nothing is left that a row could be added to."""
        declared = self.declared.aggregates.get(state, {}).get(LATENESS_KEPT, "0")
        stored = known.get(LATENESS_KEPT, declared)
        if int(declared) > int(stored) and not self.may_drop:
            self._problem(
                state,
                f"holds windows for {stored} ms after they closed, and allowed_lateness is {declared} ms "
                "now: those that were let go of would be shown again, with only the rows that come from "
                "now on; declare it as it was, give the operator another uid, which begins with no state, or "
                "start with allow_dropped_state=True to have them shown so",
            )

    def _note(self, old: StateField, new: StateField, finding: _Finding) -> None:
        parts = [] if old.name == new.name else [f"was {old.name!r}"]
        retyped = type_ddl(old.type) != type_ddl(new.type)
        if retyped:
            parts.append(f"{shown(old)} to {shown(new)}")
        if finding.dropped:
            parts.append(f"{', '.join(finding.dropped)} dropped")
        other_ttl = old.ttl != _kept_ttl(old, new)
        if other_ttl:
            parts.append(_ttl_change(old.ttl, new.ttl))
        what = What.CONVERTED if retyped or other_ttl else What.RENAMED if parts else What.KEPT
        self.changes.append(StateChange(new.name, what, "; ".join(parts) or shown(new)))

    def _drop(self, going_on: set[str]) -> None:
        for old in self.stored.layout.fields:
            if old.name in going_on:
                continue
            self.changes.append(StateChange(old.name, What.DROPPED, shown(old)))
            if not self.may_drop and old.name not in self.declared.dispensable:
                self._refuse_drop(old, going_on)

    def _refuse_drop(self, old: StateField, going_on: set[str]) -> None:
        known = self.stored.generations[-1].aggregates
        windows = {f.name: known[f.id][WINDOW_KEPT] for f in self.stored.layout.fields
                   if WINDOW_KEPT in known.get(f.id, {})}  # fmt: skip
        if old.name in windows:
            kept = [kept[WINDOW_KEPT] for kept in self.declared.aggregates.values() if WINDOW_KEPT in kept]
            self._problem(
                old.name,
                f"holds {windows[old.name]}, and {kept[0] if kept else 'no windows'} are declared; declare "
                f"them as they were, give the operator another uid, which begins with no state, {_DROP}",
            )
            return
        if windows and not going_on & windows.keys():
            # It is of windows that are no longer declared, which is told.
            self.refused.add(old.name)
            return
        renamed = f"declare it again, name it with was={old.name!r} where it was renamed"
        remedy = "keep on_timer" if old.kind is StateKind.TIMED else renamed
        self._problem(old.name, f"is in the checkpoint ({shown(old)}) and not declared; {remedy}, {_DROP}")


@dataclass
class _Finding:
    """What lies between two types."""

    problems: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    added_at_top: bool = False
    """Fields were added that a default can fill: not within an array or map."""


def _walk(
    old: pa.DataType, new: pa.DataType, path: str, default: Any, found: _Finding, of_map_state: bool = False
) -> None:
    """Compare two types to the bottom. `default` is of type `new`, or None where there is none."""
    if type_ddl(old) == type_ddl(new) or pa.types.is_null(old):
        return
    if _is_record(old) and _is_record(new):
        _walk_fields(old, new, path, default, found)
    elif pa.types.is_list(old) and pa.types.is_list(new):
        _walk(old.value_type, new.value_type, f"{path}[]", _NO_DEFAULT, found)
    elif pa.types.is_map(old) and pa.types.is_map(new):
        retyped = type_ddl(old.key_type) != type_ddl(new.key_type)
        if of_map_state and retyped and pa.types.is_nested(old.key_type):
            found.problems.append("a map key that is nested cannot change")
        _walk(old.key_type, new.key_type, f"{path} key".strip(), _NO_DEFAULT, found)
        _walk(old.item_type, new.item_type, f"{path}{{}}", _NO_DEFAULT, found)
    elif not widens(old, new):
        where = f" of {path}" if path else ""
        found.problems.append(f"{type_ddl(old)}{where} cannot become {type_ddl(new)} without loss")


_NO_DEFAULT = object()
"""Within an array or map: a default of the whole says nothing of its elements."""


def _walk_fields(old: pa.DataType, new: pa.DataType, path: str, default: Any, found: _Finding) -> None:
    before = {child.name: child for child in old}
    for child in new:
        place = f"{path}.{child.name}" if path else child.name
        given = default.get(child.name) if isinstance(default, Mapping) else None
        if child.name not in before:
            found.added_at_top |= default is not _NO_DEFAULT
            if not child.nullable and given is None:
                found.problems.append(f"the new field {place} must not be null and has no default")
            continue
        inner = _NO_DEFAULT if default is _NO_DEFAULT else given
        _walk(before.pop(child.name).type, child.type, place, inner, found)
        if not child.nullable and old.field(child.name).nullable:
            found.problems.append(f"{place} may hold nulls and cannot become not null")
    found.dropped += [f"{path}.{name}" if path else name for name in before]


def _is_record(type: pa.DataType) -> bool:
    return pa.types.is_struct(type) and not is_variant(type)


def widens(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether every value of the plain type `old` is a value of `new`, in one way only."""
    if pa.types.is_null(old) or old == new:
        return True
    if pa.types.is_decimal(old) and pa.types.is_decimal(new):
        more_whole = new.precision - new.scale >= old.precision - old.scale
        return bool(new.scale >= old.scale and more_whole)
    if old in _DIGITS and pa.types.is_decimal(new):
        return bool(new.precision - new.scale >= _DIGITS[old])
    if old in _DIGITS and new in _DIGITS:
        return _DIGITS[old] <= _DIGITS[new]
    if old in _DIGITS and pa.types.is_float64(new):
        return not pa.types.is_int64(old)
    if pa.types.is_float32(old):
        return bool(pa.types.is_float64(new))
    return bool(pa.types.is_date(old) and pa.types.is_timestamp(new) and new.tz is None)


def _kept_ttl(old: StateField, new: StateField) -> Ttl | None:
    """The ttl to go on with. A list that had one may have gaps between its items, with which only a list with
    a ttl is read: it gets one that never ends."""
    if new.ttl is None and old.ttl is not None and new.kind is StateKind.LIST:
        return replace(old.ttl, ms=TTL_MAX_MS)
    return new.ttl


def _ttl_change(old: Ttl | None, new: Ttl | None) -> str:
    if new is None:
        return f"{old} is gone: values that have not expired yet are kept for good"
    if old is None:
        return f"{new} is new: older values count from the upgrade"
    if old.clock != new.clock:
        return f"{old} becomes {new}: another clock, so older values count from the upgrade"
    return f"{old} becomes {new}, also for values that are stored already"


def _columns(key: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(f"{name} {ddl}" for name, ddl in key)


def shown(state: StateField) -> str:
    """What a state holds, in words."""
    ttl = "" if state.ttl is None else f", {state.ttl}"
    if state.kind is StateKind.TIMED:
        return f"times to {type_ddl(state.type.item_type)}"
    if state.kind is StateKind.MAP:
        return f"map state of {type_ddl(state.type.key_type)} to {type_ddl(state.type.item_type)}{ttl}"
    return f"{'list of ' if state.kind is StateKind.LIST else ''}{type_ddl(state.type)}{ttl}"


def lost_operators(uids: Iterable[str]) -> list[str]:
    """The problem of each operator that has stored state and is no longer declared."""
    return [
        f"the checkpoint holds state of operator {uid!r}, which this job does not have; "
        f"declare the operator again, {_DROP}"
        for uid in uids
    ]
