"""State with entries put over it reads as if they were in it."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.tasks.uncoordinated.state_access import Overlaid
from tests.unit.tasks.operators.operator_kit import DictState


@pytest.mark.parametrize(
    ("bounds", "keys"),
    [
        ({}, [b"ka", b"kb", b"kd", b"ke"]),
        ({"end": b"kd"}, [b"ka", b"kb"]),
        ({"start": b"b"}, [b"kb", b"kd", b"ke"]),
        ({"start": b"b", "end": b"ke"}, [b"kb", b"kd"]),
    ],
)
def test_a_scan_keeps_to_its_bounds(bounds: Any, keys: list[bytes]) -> None:
    under: Any = DictState()
    under.entries = {b"ka": b"1", b"kc": b"2", b"ke": b"3", b"x": b"4"}
    over = Overlaid(under, {b"kb": b"5", b"kc": None, b"kd": b"6", b"y": b"7"})
    assert [key for key, _ in over.scan(b"k", **bounds)] == keys
