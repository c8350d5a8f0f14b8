"""What may follow what, told before anything runs: every change that is allowed, every one that is not."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import CorruptionError, RestoreError
from holdfast.graph.aggregates import Aggregation, count
from holdfast.graph.windows import Windowed, session, tumbling
from holdfast.state.cells.declarations import declared_states
from holdfast.state.encoding.layout import StateField, StateKind, StateLayout
from holdfast.state.encoding.types import parse_schema, parse_type
from holdfast.state.files.evolution import Declared, Evolution, What, evolve, widens
from holdfast.state.files.schema_conversion import Lineage


def layout(*states: str, key: str = "user string") -> StateLayout:
    """States as `name type` (a value), `name list type` or `name map type`."""
    fields = []
    for id, state in enumerate(states, start=1):
        name, _, rest = state.partition(" ")
        kind, _, type = rest.partition(" ")
        if kind not in ("list", "map"):
            kind, type = "value", rest
        fields.append(StateField(id, name, StateKind(kind), parse_type(type)))
    return StateLayout("totals", parse_schema(key), tuple(fields))


def after(
    before: StateLayout | Lineage, now: StateLayout, *, allow_dropped_state: bool = False, **more: Any
) -> Evolution:
    stored = before if isinstance(before, Lineage) else Lineage.begin(before)
    return evolve(stored, Declared(now, **more), allow_dropped_state)


def outcome(evolution: Evolution) -> dict[str, str]:
    assert not evolution.problems
    return {change.state: str(change.what) for change in evolution.changes}


def ids(evolution: Evolution) -> dict[str, int]:
    return {field.name: field.id for field in evolution.lineage.layout.fields}


def test_the_same_declaration_in_another_order_changes_nothing() -> None:
    before = layout("a long", "b list string", "c map map<string,int>")
    evolution = after(before, layout("c map map<string,int>", "a long", "b list string"))
    assert outcome(evolution) == {"a": "kept", "b": "kept", "c": "kept"}
    assert evolution.lineage == Lineage.begin(before)


def test_states_keep_their_ids_and_new_ones_get_ids_never_used() -> None:
    first = after(layout("a long", "b long"), layout("new long", "b long"), allow_dropped_state=True)
    assert outcome(first) == {"new": "added", "b": "kept", "a": "dropped"}
    assert ids(first) == {"b": 2, "new": 3}
    # The highest id was dropped; it is still not given again.
    second = after(first.lineage, layout("b long"), allow_dropped_state=True)
    third = after(second.lineage, layout("b long", "other long"))
    assert ids(third) == {"b": 2, "other": 4}
    assert third.lineage.layout.generation == 3


def test_a_renamed_state_keeps_its_id() -> None:
    evolution = after(layout("a long", "b long"), layout("b long", "sum long"), was={"sum": "a"})
    assert outcome(evolution) == {"b": "kept", "sum": "renamed"}
    assert ids(evolution) == {"sum": 1, "b": 2}
    again = after(evolution.lineage, layout("b long", "sum long"), was={"sum": "a"})
    assert outcome(again) == {"b": "kept", "sum": "kept"}
    assert again.lineage == evolution.lineage
    both = after(layout("a int"), layout("sum long"), was={"sum": "a"})
    assert [(c.what, c.detail) for c in both.changes] == [(What.CONVERTED, "was 'a'; int to long")]


KEPT = layout("accumulator struct<x:long,y:long>")
MAX_AND_SUM = {"accumulator": {"x": "max(a)", "y": "sum(b)"}}


def test_another_aggregate_under_the_same_name_is_refused_whatever_may_be_dropped() -> None:
    stored = Declared(KEPT, aggregates=MAX_AND_SUM).begun
    for declared in ("sum(a)", "max(b)"):
        aggregates = {"accumulator": {"x": declared, "y": "sum(b)"}}
        evolution = after(stored, KEPT, aggregates=aggregates, allow_dropped_state=True)
        (problem,) = evolution.problems
        assert (
            f"state 'accumulator' of operator 'totals' holds max(a) in 'x', which is declared as {declared};"
            in problem
        )
        assert "another name" in problem
    assert not after(stored, KEPT, aggregates=MAX_AND_SUM).problems


def test_other_windows_on_stored_state_are_refused_with_what_is_stored() -> None:
    stored = Declared(KEPT, aggregates={"accumulator": {"(window)": "tumbling windows of 5s"}}).begun
    declared = {"accumulator": {"(window)": "tumbling windows of 10s"}}
    (problem,) = after(stored, KEPT, aggregates=declared, allow_dropped_state=True).problems
    assert "holds tumbling windows of 5s, and tumbling windows of 10s are declared" in problem
    assert "another uid" in problem


def test_of_aggregates_that_were_stored_before_this_was_kept_nothing_is_refused_and_all_is_known_then() -> (
    None
):
    first = after(KEPT, KEPT, aggregates=MAX_AND_SUM)
    assert outcome(first) == {"accumulator": "kept"}
    assert first.lineage == Declared(KEPT, aggregates=MAX_AND_SUM).begun
    assert first.lineage.fingerprint == Lineage.begin(KEPT).fingerprint
    other = {"accumulator": {"x": "min(a)", "y": "sum(b)"}}
    assert after(first.lineage, KEPT, aggregates=other).problems


def test_an_aggregate_that_was_given_up_leaves_its_name_to_another() -> None:
    only_y, aggregates = layout("accumulator struct<y:long>"), {"accumulator": {"y": "sum(b)"}}
    stored = Declared(KEPT, aggregates=MAX_AND_SUM).begun
    without = after(stored, only_y, aggregates=aggregates, allow_dropped_state=True)
    assert not without.problems
    again = after(without.lineage, KEPT, aggregates={"accumulator": {"x": "min(c)", "y": "sum(b)"}})
    assert not again.problems


def test_two_states_cannot_go_on_with_one() -> None:
    evolution = after(layout("a long"), layout("x long", "y long"), was={"x": "a", "y": "a"})
    assert "state 'y' of operator 'totals' was 'a', which 'x' is too" in evolution.problems[0]
    evolution = after(layout("a long"), layout("a long", "x long"), was={"x": "a"})
    assert "state 'x' of operator 'totals' was 'a', which 'a' is too" in evolution.problems[0]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("byte", "short"), ("byte", "long"), ("int", "long"), ("float", "double"), ("int", "double"),
        ("byte", "decimal(3,0)"), ("int", "decimal(12,2)"), ("long", "decimal(19,0)"),
        ("decimal(10,2)", "decimal(12,2)"), ("decimal(10,2)", "decimal(12,4)"),
        ("date", "timestamp_ntz"), ("void", "string"), ("void", "struct<a:int>"), ("varchar(3)", "string"),
        ("array<int>", "array<long>"), ("map<int,float>", "map<long,double>"),
        ("struct<a:int,b:string>", "struct<b:string,a:long>"),
        ("struct<a:array<struct<b:int>>>", "struct<a:array<struct<b:long,c:string>>>"),
        ("struct<a:int not null>", "struct<a:int>"),
    ],
)  # fmt: skip
def test_what_holds_every_value_may_follow(old: str, new: str) -> None:
    assert not after(layout(f"s {old}"), layout(f"s {new}")).problems
    assert not after(layout(f"s list {old}"), layout(f"s list {new}")).problems
    assert not after(layout(f"s map map<string,{old}>"), layout(f"s map map<string,{new}>")).problems


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("long", "int", "long cannot become int without loss"),
        ("long", "double", "long cannot become double without loss"),
        ("double", "float", "cannot become float"),
        ("byte", "float", "cannot become float"),
        ("long", "decimal(18,0)", "cannot become decimal(18,0)"),
        ("decimal(10,2)", "decimal(11,4)", "cannot become decimal(11,4)"),
        ("decimal(10,2)", "decimal(12,1)", "cannot become decimal(12,1)"),
        ("string", "long", "string cannot become long"),
        ("string", "binary", "string cannot become binary"),
        ("boolean", "int", "boolean cannot become int"),
        ("date", "timestamp", "date cannot become timestamp"),
        ("timestamp", "timestamp_ntz", "timestamp cannot become timestamp_ntz"),
        ("timestamp", "long", "timestamp cannot become long"),
        ("array<long>", "array<int>", "long of [] cannot become int"),
        ("struct<a:int>", "map<string,int>", "cannot become map<string,int>"),
        ("struct<a:struct<b:long>>", "struct<a:struct<b:int>>", "long of a.b cannot become int"),
        ("struct<a:int>", "struct<a:int not null>", "a may hold nulls"),
        ("struct<a:int>", "struct<a:int,b:int not null>", "b must not be null and has no default"),
    ],
)
def test_what_would_lose_values_is_refused(old: str, new: str, said: str) -> None:
    for shape in ("s {}", "s list {}"):
        problems = after(layout(shape.format(old)), layout(shape.format(new))).problems
        assert len(problems) == 1, problems
        assert "state 's' of operator 'totals'" in problems[0]
        assert said in problems[0]
        assert "; declare it as it was, or give the new one another name" in problems[0]


def test_another_kind_or_another_key_is_refused() -> None:
    (problem,) = after(layout("s list long"), layout("s long")).problems
    assert "is declared as long, the checkpoint holds list of long; declare it as it was" in problem
    (problem,) = after(layout("s long"), layout("s long", key="user long")).problems
    assert "keyed by user long, its stored state by user string" in problem
    assert "with Savepoint.edit" in problem


def test_map_keys_widen_like_values_but_not_within_structs() -> None:
    assert not after(layout("s map map<int,int>"), layout("s map map<decimal(12,0),int>")).problems
    (problem,) = after(
        layout("s map map<struct<a:int>,int>"), layout("s map map<struct<a:long>,int>")
    ).problems
    assert "a map key that is nested cannot change" in problem


def test_dropping_needs_leave() -> None:
    before, now = (
        layout("a long", "s struct<x:int,y:struct<z:int,w:int>>"),
        layout("s struct<y:struct<z:int>>"),
    )
    problems = after(before, now).problems
    assert len(problems) == 2
    assert "x, y.w" in problems[0] or "y.w, x" in problems[0]
    assert "allow_dropped_state=True" in problems[0]
    assert "state 'a' of operator 'totals' is in the checkpoint (long) and not declared" in problems[1]
    assert outcome(after(before, now, allow_dropped_state=True)) == {"s": "converted", "a": "dropped"}


def test_every_problem_is_told_at_once() -> None:
    before = layout("a long", "b list int", "c string")
    problems = after(before, layout("a int", "b int", key="user date")).problems
    assert len(problems) == 4
    for part in ("keyed by", "'a'", "'b'", "'c'"):
        assert any(part in problem for problem in problems)


def entries(of: StateLayout, **values: Any) -> list[tuple[bytes, bytes | None]]:
    """Values of one key."""
    base = of.keys.encode([pa.array(["al"])], pa.array([7], pa.uint16()).to_numpy())[0]
    return [
        (base + of.field(name).suffix, of.field(name).codec.encode_one(value))
        for name, value in sorted(values.items(), key=lambda pair: of.field(pair[0]).id)
    ]


def converted(evolution: Lineage, from_generation: int, stored: list[tuple[bytes, bytes | None]]) -> Any:
    convert = evolution.converter(from_generation, "snapshot s")
    assert convert is not None
    named = {field.id: field for field in evolution.layout.fields}
    return {named[k[-1]].name: named[k[-1]].codec.decode_one(v or b"") for k, v in convert(stored)}


def test_new_fields_take_the_default_that_came_with_them_for_ever() -> None:
    before = layout("s struct<a:int>")
    default = {"a": 0, "n": 5, "inner": {"t": "x"}}
    second = after(before, layout("s struct<a:int,n:long,inner:struct<t:string>>"), defaults={"s": default})
    stored = entries(before, s={"a": 3})
    assert converted(second.lineage, 0, stored) == {"s": {"a": 3, "n": 5, "inner": {"t": "x"}}}
    assert converted(second.lineage, 0, entries(before, s=None)) == {"s": None}
    # Code with another default comes later: what the field was filled with then stays.
    wide = layout("s struct<a:long,n:long,inner:struct<t:string>>")
    third = after(second.lineage, wide, defaults={"s": {**default, "n": 6}})
    assert converted(third.lineage, 0, stored) == {"s": {"a": 3, "n": 5, "inner": {"t": "x"}}}
    assert pickle.loads(pickle.dumps(third.lineage)) == third.lineage


def test_a_field_that_comes_back_does_not_bring_old_values_with_it() -> None:
    before = layout("s struct<a:int,b:int>", "t long")
    without = after(before, layout("s struct<b:int>"), allow_dropped_state=True)
    back = after(without.lineage, layout("s struct<a:int,b:int>", "t string"))
    stored = entries(before, s={"a": 1, "b": 2}, t=9)
    assert converted(back.lineage, 0, stored) == {"s": {"a": None, "b": 2}}
    assert ids(back) == {"s": 1, "t": 3}


def test_entries_of_no_known_state_or_generation_are_refused() -> None:
    evolution = after(layout("a int"), layout("a long"))
    convert = evolution.lineage.converter(0, "snapshot s")
    assert convert is not None
    other = layout("a int", "b int")
    with pytest.raises(CorruptionError, match="snapshot s holds entries of state id 2"):
        convert(entries(other, b=1))
    with pytest.raises(RestoreError, match="snapshot s was written under generation 2"):
        evolution.lineage.converter(2, "snapshot s")
    assert evolution.lineage.converter(1, "snapshot s") is None


def test_lineages_that_convert_otherwise_have_other_fingerprints() -> None:
    before = layout("s struct<a:int>")
    now = layout("s struct<a:int,n:long>")
    made = [
        Lineage.begin(before),
        after(before, now).lineage,
        after(before, now, defaults={"s": {"n": 1}}).lineage,
        after(before, now, defaults={"s": {"n": 2}}).lineage,
    ]
    assert len({lineage.fingerprint for lineage in made}) == 4
    assert made[1].fingerprint == after(before, now).lineage.fingerprint


def test_what_a_name_was_is_said_where_the_state_is_declared() -> None:
    import holdfast as hf

    class Renamed(hf.KeyedFunction):
        value = hf.ValueState("long", was="v")
        items = hf.ListState("long", was="l")
        pairs = hf.MapState("string", "long", was="m")
        top = hf.ReducingState("long", max, was="r")

    assert [state.was for state in declared_states(Renamed).values()] == ["v", "l", "m", "r"]


def test_widening_is_transitive() -> None:
    """What was allowed step by step is one conversion at most wider."""
    names = ["byte", "short", "int", "long", "float", "double", "date", "timestamp_ntz", "decimal(3,0)",
             "decimal(10,0)", "decimal(19,0)", "decimal(21,2)"]  # fmt: skip
    types = [parse_type(name) for name in names]
    for a in types:
        for b in types:
            for c in types:
                if widens(a, b) and widens(b, c):
                    assert widens(a, c), (a, b, c)


def of_windows(window: Any, **more: Any) -> Declared:
    rows = parse_schema("k string, ts timestamp, v long")
    windows = Windowed(window, "ts", Aggregation({"n": count()}), **more)
    fields = windows.state_fields(rows)
    return Declared(
        StateLayout("totals", parse_schema("k string"), fields), aggregates={windows.state: windows.computed}
    )


def test_windows_of_another_kind_are_one_problem_in_their_own_words() -> None:
    sessions, tumbled = of_windows(session("30m")), of_windows(tumbling("5m"))
    (problem,) = evolve(sessions.begun, tumbled, allow_dropped_state=False).problems
    assert problem == (
        "state 'sessions' of operator 'totals' holds sessions with a gap of 30m, and tumbling windows of 5m "
        "are declared; declare them as they were, give the operator another uid, which begins with no state, "
        "or start with allow_dropped_state=True to give it up"
    )
    assert not evolve(sessions.begun, tumbled, allow_dropped_state=True).problems
    (problem,) = after(sessions.begun, layout("v long", key="k string")).problems
    assert "holds sessions with a gap of 30m, and no windows are declared; " in problem


def test_a_state_with_a_problem_is_refused() -> None:
    evolution = after(layout("a long", "b long", "c long"), layout("a int", "b long"))
    assert {change.state: str(change.what) for change in evolution.changes} == {
        "a": "refused",
        "b": "kept",
        "c": "refused",
    }
    other_key = after(layout("a long"), layout("a long", key="user long"))
    assert [str(change.what) for change in other_key.changes] == ["refused"]
