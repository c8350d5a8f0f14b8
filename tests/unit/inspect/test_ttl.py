"""What has expired by the time of its commit is not shown, whether or not it has been removed.

In these checkpoints the time of an epoch is its number, in ms.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast.cli.main import app
from holdfast.inspect.diff import differences
from holdfast.inspect.point_query import StateReader
from holdfast.inspect.stored_state import open_stored, state_entries, state_tables
from holdfast.state.encoding.layout import in_time_index
from holdfast.state.encoding.ttl import Ttl
from holdfast.state.files.delta import to_entries
from holdfast.state.files.rows import changes_from
from tests.unit.inspect.stored import LAYOUT, MadeCheckpoint

SHORT = replace(LAYOUT, fields=tuple(replace(field, ttl=Ttl(3)) for field in LAYOUT.fields))
ANN, BEN = ("ann", 1), ("ben", 2)
FULL: dict[str, Any] = {"total": 1, "tags": ["a"], "seen": {"x": 1}, "user": {"name": "n", "age": 2}}


@pytest.fixture(params=["deltas", "snapshots"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> MadeCheckpoint:
    """Ann is written in epoch 1, Ben in 2 and 4; so Ann has expired in 4."""
    made = MadeCheckpoint(tmp_path, SHORT)
    snapshots = request.param == "snapshots"
    made.commit({ANN: FULL}, snapshots=snapshots)
    made.commit({BEN: FULL}, snapshots=snapshots)
    made.commit({}, snapshots=snapshots)
    made.commit({BEN: {**FULL, "tags": ["a", "b"]}}, snapshots=snapshots)
    return made


def users(url: str, epoch: int) -> list[str]:
    stored = open_stored(url, epoch=epoch)
    return [row["user"] for table in state_tables(stored, "totals") for row in table.to_pylist()]


def test_keys_are_shown_until_they_expire(made: MadeCheckpoint) -> None:
    assert [sorted(users(made.url, epoch)) for epoch in (1, 2, 3, 4)] == [
        ["ann"], ["ann", "ben"], ["ann", "ben"], ["ben"],
    ]  # fmt: skip


def test_a_point_query_finds_nothing_of_what_has_expired(made: MadeCheckpoint) -> None:
    with StateReader(made.url) as reader:
        ann, ben = (reader.get("totals", {"user": user, "day": day}) for user, day in (ANN, BEN))
    assert not ann.found
    assert set(ann.values.values()) == {None}
    assert ben.found
    assert (ben.values["tags"], ben.values["seen"]) == (["a", "b"], {"x": 1})


def test_a_difference_is_one_of_values_not_of_times(made: MadeCheckpoint) -> None:
    before, after = open_stored(made.url, epoch=3), open_stored(made.url, epoch=4)
    (found,) = differences(before, after)
    assert (found.added, found.removed, found.changed) == (0, 1, 1)
    made.commit({BEN: {**FULL, "tags": ["a", "b"]}})
    (same,) = differences(after, open_stored(made.url, epoch=5))
    assert not same.differs


def test_sizes_count_keys_that_are_there(made: MadeCheckpoint) -> None:
    shown = CliRunner().invoke(app, ["state", "show", made.url, "--sizes", "--json"])
    assert sum(int(count) for count in re.findall(r'"keys": ?(\d+)', shown.stdout)) == 1


def test_the_schema_says_the_ttl(made: MadeCheckpoint) -> None:
    shown = CliRunner().invoke(app, ["state", "show", made.url], env={"COLUMNS": "300"})
    assert "total (ttl 3ms since write)" in shown.stdout


def test_entries_that_are_written_elsewhere_keep_their_times(made: MadeCheckpoint) -> None:
    """As a canonical savepoint, or another number of key groups, has them: what has expired stays so."""
    for run in state_entries(open_stored(made.url), "totals"):
        again = to_entries(SHORT, changes_from(SHORT, run))
        assert [entry for entry in again if not in_time_index(entry[0])] == list(run)
