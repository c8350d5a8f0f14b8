from __future__ import annotations

import pyarrow as pa
import pytest

from holdfast.connectors.contract import StagedPart
from holdfast.connectors.memory import CRASH, MemorySink, MemorySource, SimulatedCrash
from holdfast.errors import DefinitionError


def test_a_crash_in_the_input_comes_after_the_rows_before_it_and_once() -> None:
    source = MemorySource(["a", "b", CRASH, "c"])
    first = source.reader([]).next(None, None, 0)
    assert first is not None
    assert (first.end, first.rows) == (2, 2)
    assert not source.reader([]).exhausted(first.end)
    with pytest.raises(SimulatedCrash, match="after row 2"):
        source.reader([]).next(first.end, None, 0)
    restarted = source.reader([])
    second = restarted.next(first.end, None, 0)
    assert second is not None
    assert second.end == 3
    whole = restarted.next(None, None, 0)
    assert whole is not None
    assert whole.end == 3, "a crash that has happened no longer cuts slices"


def test_crashes_one_after_another_each_happen() -> None:
    source = MemorySource([CRASH, CRASH, 1])
    for _ in range(2):
        with pytest.raises(SimulatedCrash):
            source.reader([]).next(None, None, 0)
    assert source.reader([]).next(None, None, 0) is not None


def test_a_crash_at_the_very_end_still_happens() -> None:
    source = MemorySource([1, CRASH])
    with pytest.raises(SimulatedCrash):
        source.reader([]).next(1, None, 0)
    assert source.reader([]).exhausted(1)


@pytest.mark.parametrize(
    ("value", "type"), [("a", "string"), (1, "long"), (1.5, "double"), (True, "boolean")]
)
def test_single_values_are_one_column(value: object, type: str) -> None:
    assert MemorySource([value, CRASH, None, value]).schema == f"value {type}"


@pytest.mark.parametrize("rows", [[], [("a", 1)], ["a", 1], [{"a": 1}], [None]])
def test_columns_that_cannot_be_guessed_must_be_given(rows: list[object]) -> None:
    with pytest.raises(DefinitionError, match="give schema="):
        MemorySource(rows)


def test_the_table_of_a_sink_has_all_epochs_in_order() -> None:
    sink = MemorySink()
    assert sink.table().num_rows == 0
    for epoch in (2, 1):
        part = StagedPart(0, 1, lambda epoch=epoch: pa.table({"n": [epoch]}))  # type: ignore[misc]
        sink.publisher("job", "out").publish(epoch, [part])
    assert sink.table().column("n").to_pylist() == [1, 2]
