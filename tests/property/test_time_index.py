"""Whatever changes: the time index holds what follows from the entries, no more and no less."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.state.cells.timers import FIRST_US, LAST_US, datetime_of, timer_fields
from holdfast.state.encoding.layout import (
    StateField,
    StateKind,
    StateLayout,
    in_time_index,
    of_time_key,
    time_keys,
)
from holdfast.state.files.delta import read_delta, to_entries, write_delta
from holdfast.state.files.evolution import Declared, evolve
from holdfast.state.files.rows import changes_from, changes_of, rows_of
from holdfast.state.files.schema_conversion import Lineage, delta_entries
from tests.unit.inspect.stored import Keys, changes_between

GROUPS = 4
LONG = "x" * 600
PLAIN = (
    StateField(0, "total", StateKind.VALUE, pa.int64()),
    StateField(1, "tags", StateKind.LIST, pa.string()),
)
EVENT, PROCESSING = timer_fields(2)
LAYOUT = StateLayout("op", pa.schema([("user", pa.string())]), (*PLAIN, EVENT, PROCESSING))
UNTIMED = StateLayout("op", LAYOUT.key, PLAIN)
Stored = dict[bytes, bytes]

_calm = settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
times = st.dictionaries(
    st.sampled_from([FIRST_US, -1, 0, 1, 5, 1_000_000, LAST_US]).map(datetime_of), st.just(True), max_size=4
)
kept = st.fixed_dictionaries(
    {},
    optional={
        "total": st.integers(0, 9),
        "tags": st.lists(st.sampled_from("ab"), min_size=1, max_size=2),
        EVENT.name: times,
        PROCESSING.name: times,
    },
)
epochs = st.lists(
    st.dictionaries(
        st.sampled_from(["", "a", "b", LONG, LONG + "y"]).map(lambda key: (key,)), kept, min_size=1
    ),
    min_size=1,
    max_size=5,
)


def indexed(entries: Stored) -> Stored:
    return {key: value for key, value in entries.items() if in_time_index(key)}


def derived(layout: StateLayout, entries: Stored) -> Stored:
    """The index, worked out from the entries alone."""
    timed = {field.id: field for field in layout.fields if field.kind is StateKind.TIMED}
    found = {}
    for key in entries:
        if in_time_index(key):
            continue
        length = layout.keys.base_length(key)
        if (field := timed.get(key[length])) is not None:
            found[time_keys(field.suffix, [key[:length]], [key])[0]] = b""
    return found


def apply(entries: Stored, changes: list[tuple[bytes, bytes | None]]) -> None:
    keys = [key for key, _ in changes]
    assert keys == sorted(set(keys)), "backends take sorted entries, each once"
    for key, value in changes:
        if value is None:
            entries.pop(key, None)
        else:
            entries[key] = value


def after(model: Keys, changed: Keys) -> Keys:
    return {key: values for key, values in {**model, **changed}.items() if values}


@_calm
@given(epochs)
def test_the_index_follows_from_the_entries(found: list[Keys]) -> None:
    entries, again, model = Stored(), Stored(), Keys()
    for changed in found:
        changes = changes_between(LAYOUT, model, changed, GROUPS)
        apply(entries, to_entries(LAYOUT, changes))
        # As another executor brings it about, from the delta.
        apply(again, to_entries(LAYOUT, read_delta(LAYOUT, write_delta(LAYOUT, changes), "d")))
        model = after(model, changed)
        assert again == entries
        assert indexed(entries) == derived(LAYOUT, entries)
    wanted = sorted((at, key) for (key,), values in model.items() for at in values.get(EVENT.name, {}))
    at_all = [of_time_key(key, EVENT) for key in sorted(indexed(entries)) if key[3] == EVENT.id]
    assert sorted(datetime_of(at) for at, _ in at_all) == [at for at, _ in wanted]


@_calm
@given(epochs)
def test_rows_leave_the_index_out_and_bring_it_back(found: list[Keys]) -> None:
    entries, model = Stored(), Keys()
    for changed in found:
        apply(entries, to_entries(LAYOUT, changes_between(LAYOUT, model, changed, GROUPS)))
        model = after(model, changed)
    rows = rows_of(LAYOUT, sorted(entries.items()))
    plain = [(key, value) for key, value in sorted(entries.items()) if not in_time_index(key)]
    assert rows.equals(rows_of(LAYOUT, plain))
    whole, from_rows = Stored(), Stored()
    apply(whole, to_entries(LAYOUT, changes_from(LAYOUT, sorted(entries.items()))))
    apply(from_rows, to_entries(LAYOUT, changes_of(LAYOUT, rows)))
    assert indexed(whole) == indexed(from_rows) == indexed(entries)


@_calm
@given(epochs, st.booleans())
def test_a_function_that_gains_or_loses_its_timers_has_the_index_that_follows(
    found: list[Keys], gains: bool
) -> None:
    old, new = (UNTIMED, LAYOUT) if gains else (LAYOUT, UNTIMED)
    evolution = evolve(Lineage.begin(old), Declared(new), allow_dropped_state=True)
    assert not evolution.problems
    lineage, entries, stored, model = evolution.lineage, Stored(), Stored(), Keys()
    convert = lineage.converter(0, "snapshot")
    assert convert is not None
    for changed in found:
        changed = {key: _of(old, values) for key, values in changed.items()}
        changes = changes_between(old, model, changed, GROUPS)
        apply(stored, to_entries(old, changes))
        apply(entries, delta_entries(lineage, write_delta(old, changes), "d"))
        model = after(model, changed)
        assert indexed(entries) == derived(lineage.layout, entries)
    # From a snapshot, whose entries come in runs, cut anywhere between two of them.
    items: list[Any] = sorted(stored.items())
    for cut in range(len(items) + 1):
        converted = [*convert(items[:cut]), *convert(items[cut:])]
        assert dict(converted) == entries
        assert [key for key, _ in converted] == sorted(entries)


def _of(layout: StateLayout, values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in layout.by_name}
