"""Whether rows have to be looked for, from what jobs counted."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from holdfast.connectors.contract import Sifted
from holdfast.runtime.epoch import set_aside
from holdfast.runtime.epoch.set_aside import Counts

ROWS: Any = object()
RESULTS: Any = [object()]


def counts(observed: Any, uncounted: set[str] | None = None) -> Counts:
    found = Counts(set() if uncounted is None else uncounted)
    assert found.watch("events", Sifted(ROWS, observed)) is ROWS
    return found


@pytest.mark.parametrize(("told", "certain"), [((7, 0), True), ((7, 1), False), ((0, 0), False)])
def test_only_rows_that_were_read_and_fit_are_not_looked_for(told: tuple[int, int], certain: bool) -> None:
    found = counts(lambda: told)
    assert not found.all_fit("events"), "no job has run"
    found.ran([])
    assert not found.all_fit("events"), "Spark left the job out"
    found.ran(RESULTS)
    assert found.all_fit("events") is certain


def test_a_count_that_never_comes_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(set_aside, "WAIT_SECONDS", 0.01)
    asked: list[int] = []

    def never() -> tuple[int, int]:
        asked.append(1)
        threading.Event().wait()
        raise AssertionError

    uncounted: set[str] = set()
    for _ in range(2):
        found = counts(never, uncounted)
        found.ran(RESULTS)
        assert not found.all_fit("events")
    assert (len(asked), uncounted) == (1, {"events"})
