"""Whether the state that a checkpoint holds is the state that this code declares."""

from __future__ import annotations

from holdfast.checkpoint.records import OperatorSchema, StateSchema
from holdfast.engine.program import Program
from holdfast.errors import RestoreError
from holdfast.state.layout import StateLayout
from holdfast.state.types import type_ddl


def operator_schemas(program: Program, stored: tuple[OperatorSchema, ...]) -> tuple[OperatorSchema, ...]:
    """The schemas in force for this run; RestoreError when stored state does not fit what is declared."""
    found = {schema.uid: schema for schema in stored}
    for uid in found.keys() - program.forms.keys():
        raise RestoreError(
            f"the checkpoint holds state of operator {uid!r}, which this job does not have; "
            "declare the operator again, or start with another checkpoint"
        )
    return tuple(_checked(form.layout, found.get(uid)) for uid, form in program.forms.items())


def _checked(layout: StateLayout, stored: OperatorSchema | None) -> OperatorSchema:
    schema = OperatorSchema(
        uid=layout.operator,
        key=tuple((field.name, type_ddl(field.type)) for field in layout.key),
        states=tuple(
            StateSchema(id=field.id, name=field.name, kind=str(field.kind), type=type_ddl(field.type))
            for field in layout.fields
        ),
    )
    if stored is not None and stored != schema:
        raise RestoreError(_difference(schema, stored))
    return schema


def _difference(ours: OperatorSchema, stored: OperatorSchema) -> str:
    remedy = "declare it as it was, or start with another checkpoint"
    if ours.key != stored.key:
        keys = f"{_columns(ours.key)}, its stored state by {_columns(stored.key)}"
        return f"operator {ours.uid!r} is keyed by {keys}; {remedy}"
    before = {state.name: state for state in stored.states}
    now = {state.name: state for state in ours.states}
    for name in sorted(before.keys() | now.keys()):
        old, new = before.get(name), now.get(name)
        if old != new:
            return (
                f"state {name!r} of operator {ours.uid!r} is declared as {_state(new)}, "
                f"the checkpoint holds {_state(old)}; {remedy}"
            )
    return (
        f"the states of operator {ours.uid!r} are declared in another order than the checkpoint has; {remedy}"
    )


def _columns(key: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(f"{name} {ddl}" for name, ddl in key)


def _state(state: StateSchema | None) -> str:
    return "nothing" if state is None else f"{state.kind} of {state.type}"
