"""One key's states as the user's `serialize_state` and `restore_state` see them."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import RestoreError
from holdfast.graph.functions import KeyedFunction
from holdfast.state.cells.declarations import ListState, MapState, ValueState, state_fields
from holdfast.state.encoding.layout import StateLayout
from holdfast.state.files.saved_key import as_objects, from_objects


class Kept(KeyedFunction):
    at = ValueState("struct<x:long,tags:map<string,array<long>>>")
    steps = ListState("struct<x:long>")
    names = MapState("string", "struct<x:long>")


LAYOUT = StateLayout("op", pa.schema([("k", pa.string())]), state_fields(Kept))
GROUPS = pa.array([3]).to_numpy().astype("uint16")
KEY = [pa.array(["a"])]
BASE, WHOLE = LAYOUT.keys.encode(KEY, GROUPS)[0], LAYOUT.keys.key_bytes(KEY)[0]
STATES: dict[str, Any] = {"at": (1, {"t": [2, 3]}), "steps": [(4,), None], "names": {"n": (5,)}}


def test_states_survive_json_in_which_rows_become_lists() -> None:
    entries = from_objects(LAYOUT, BASE, STATES, WHOLE)
    states = as_objects(LAYOUT, entries)
    assert states == STATES
    assert states["at"].tags == {"t": [2, 3]}
    assert from_objects(LAYOUT, BASE, json.loads(json.dumps(states)), WHOLE) == entries


def test_what_restore_state_gives_must_fit() -> None:
    with pytest.raises(RestoreError) as refused:
        from_objects(LAYOUT, BASE, {**STATES, "at": (1, {"t": ["x"]})}, WHOLE)
    what = "state 'at' of operator 'op', which restore_state gave, is declared "
    assert str(refused.value).startswith(what)
    assert str(refused.value).endswith("but got 'x' (str) at tags['t'][0]; give an int")
