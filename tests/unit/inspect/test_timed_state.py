"""Timers in stored state: on every backend, in every file, and as a person sees them."""

from __future__ import annotations

import datetime as dt
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.checkpoint.chain.shard_lines import line_of
from holdfast.ids import shard_ranges
from holdfast.inspect.diff import differences
from holdfast.inspect.point_query import StateReader
from holdfast.inspect.stored_state import open_stored, state_entries
from holdfast.state.cells.timers import timer_fields
from holdfast.state.encoding.layout import StateField, StateKind, StateLayout, in_time_index, of_time_key
from holdfast.tasks.messages import Workspace
from holdfast.tasks.working_state import Kept, open_shard
from tests.unit.cli.shell import call, text
from tests.unit.inspect.stored import MadeCheckpoint

LAYOUT = StateLayout(
    "totals",
    pa.schema([("user", pa.string())]),
    (StateField(1, "total", StateKind.VALUE, pa.int64()), *timer_fields(2)),
)
BACKENDS = ["lmdb", "rocksdb"]
LONG = "x" * 700


def at(second: int) -> dt.datetime:
    return dt.datetime(2026, 1, 1, 0, 0, second, tzinfo=dt.UTC)


def made(root: Path, **more: Any) -> MadeCheckpoint:
    """Two epochs with timers set and deleted, and snapshots after the first."""
    checkpoint = MadeCheckpoint(root, LAYOUT, **more)
    users = {(f"u{n}",): {"total": n, "event_timers": {at(n): True}} for n in range(12)}
    checkpoint.commit({**users, (LONG,): {"event_timers": {at(40): True, at(41): True}}}, snapshots=True)
    checkpoint.commit(
        {("u1",): {"total": 1}, ("u2",): {"total": 2, "event_timers": {at(2): True, at(30): True}},
         ("u3",): {"total": 3, "processing_timers": {at(3): True}}}
    )  # fmt: skip
    return checkpoint


def open_times(checkpoint: MadeCheckpoint) -> list[dt.datetime]:
    names = [field.name for field in LAYOUT.fields[1:]]
    return sorted(
        when for values in checkpoint.model.values() for name in names for when in values.get(name, {})
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shards", [1, 2, 3])
def test_a_restored_shard_has_the_index_of_its_timers_at_every_parallelism(
    tmp_path: Path, backend: str, shards: int
) -> None:
    checkpoint = made(tmp_path, backend=backend)
    workspace = Workspace("job", checkpoint.url, str(tmp_path / "restored"), backend)
    found: list[dt.datetime] = []
    for groups in shard_ranges(checkpoint.key_groups, shards):
        line = line_of(checkpoint.view, "totals", groups)
        with closing(
            open_shard(
                workspace, "totals", checkpoint.lineage, line, checkpoint.view.last_epoch, Kept.IN_CHECKPOINT
            )
        ) as state:
            keys = [key for key, _ in state.scan(b"") if in_time_index(key)]
            states = {field.id: field for field in checkpoint.lineage.layout.fields}
            times = [of_time_key(key, states[key[3]])[0] for key in keys]
            found += [dt.datetime.fromtimestamp(at_us / 1_000_000, dt.UTC) for at_us in times]
            assert all(groups.first <= int.from_bytes(key[:2], "big") < groups.end for key in keys)
    assert sorted(found) == open_times(checkpoint)


def test_inspection_shows_timers_with_their_key_and_no_index(tmp_path: Path) -> None:
    checkpoint = made(tmp_path)
    stored = open_stored(checkpoint.url)
    assert not [key for run in state_entries(stored, "totals") for key, _ in run if in_time_index(key)]
    with StateReader(checkpoint.url) as reader:
        assert reader.get("totals", "u2").values == {
            "total": 2,
            "event_timers": {at(2): True, at(30): True},
            "processing_timers": None,
        }
        assert reader.get("totals", "u1").values["event_timers"] is None
        assert len(reader.get("totals", LONG).values["event_timers"]) == 2


def test_a_difference_in_timers_alone_is_a_difference_of_the_key(tmp_path: Path) -> None:
    checkpoint = made(tmp_path)
    (found,) = differences(open_stored(checkpoint.url, epoch=1), open_stored(checkpoint.url, epoch=2))
    assert (found.added, found.removed, found.changed) == (0, 0, 3)
    (one,) = [each for each in found.examples if each.key == {"user": "u1"}]
    assert one.before is not None
    assert one.after is not None
    assert (one.before["event_timers"], one.after["event_timers"]) == ([(at(1), True)], None)


def test_the_commands_show_the_timers_of_each_key(tmp_path: Path) -> None:
    checkpoint = made(tmp_path)
    shown = call("state", "show", checkpoint.url)
    by_user = {row["user"]: row for row in shown}
    assert by_user["u2"]["event_timers"] == [
        ["2026-01-01T00:00:02+00:00", True],
        ["2026-01-01T00:00:30+00:00", True],
    ]
    assert by_user["u1"]["event_timers"] is None
    assert "2026-01-01T00:00:30" in text(
        "state", "get", "--checkpoint", checkpoint.url, "--uid", "totals", "--key", "u2"
    )
    call("state", "export", checkpoint.url, "--out", str(tmp_path / "out"), "--format", "json")
    lines = (tmp_path / "out" / "totals.json").read_text().splitlines()
    exported = {row["user"]: row["event_timers"] for row in map(json.loads, lines)}
    assert exported["u2"] == by_user["u2"]["event_timers"]
