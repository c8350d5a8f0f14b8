"""State read from storage is what was committed, whatever files it lies in."""

from __future__ import annotations

import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.checkpoint.chain.pins import read_pins
from holdfast.clock import SystemClock
from holdfast.errors import CorruptionError, RestoreError
from holdfast.ids import KeyGroup, KeyGroupRange
from holdfast.inspect import stored_state
from holdfast.inspect.point_query import StateReader
from holdfast.inspect.stored_state import open_stored, pieces, pinned, state_tables
from holdfast.state.encoding.layout import StateField, StateKind, StateLayout
from holdfast.state.encoding.types import parse_type
from holdfast.state.files.evolution import Declared, evolve
from tests.unit.inspect.stored import LAYOUT, Keys, MadeCheckpoint

LONG = "x" * 500
FROZEN = Path(__file__).parents[2] / "fixtures" / "v1"


def values(draw: st.DrawFn) -> dict[str, Any]:
    """What one key may be left with; nothing at all among it."""
    made = {
        "total": draw(st.none() | st.integers(0, 9)),
        "tags": draw(st.none() | st.lists(st.sampled_from("abc"), min_size=1, max_size=3)),
        "seen": draw(st.none() | st.dictionaries(st.sampled_from(["p", "q", LONG]), st.integers(0, 9))),
        "user": draw(st.none() | st.just({"name": "n", "age": 3})),
    }
    return {name: value for name, value in made.items() if value}


@st.composite
def epochs(draw: st.DrawFn) -> list[tuple[Keys, bool, int]]:
    """Changes, whether snapshots are taken, and the parallelism."""
    key = st.tuples(st.sampled_from(["ann", "bob", "cid", LONG]), st.integers(0, 3))
    return [
        (
            {draw(key): values(draw) for _ in range(draw(st.integers(1, 6)))},
            draw(st.booleans()),
            draw(st.sampled_from([1, 2, 3])),
        )
        for _ in range(draw(st.integers(1, 5)))
    ]


def read(made: MadeCheckpoint, groups: KeyGroupRange | None = None, **which: int) -> Keys:
    """The rows of the state, as a model has them. The struct state meets a key column's name."""
    found: Keys = {}
    for table in state_tables(open_stored(made.url, **which), "totals", groups):
        for row in table.to_pylist(maps_as_pydicts="strict"):
            states = {"total": row["total"], "tags": row["tags"], "seen": row["seen"], "user": row["user_"]}
            assert (row["user"], row["day"]) not in found, "a key was read twice"
            found[row["user"], row["day"]] = {name: v for name, v in states.items() if v is not None}
    return found


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(epochs())
def test_every_retained_commit_reads_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, told: list[tuple[Keys, bool, int]]
) -> None:
    made = MadeCheckpoint(tmp_path_factory.mktemp("made"))
    expected = {}
    for changed, snapshots, parallelism in told:
        if parallelism != len(made.shards):
            made.rescale(parallelism)
        made.commit(changed, snapshots=snapshots)
        expected[made.view.number] = dict(made.model)
    for number, model in expected.items():
        assert read(made, commit=number) == model
        assert read(made, epoch=number) == model
    parts = [KeyGroupRange(KeyGroup(group), KeyGroup(group + 1)) for group in range(made.key_groups)]
    assert {key: v for part in parts for key, v in read(made, part).items()} == made.model


def filled(tmp_path: Path, **options: Any) -> MadeCheckpoint:
    made = MadeCheckpoint(tmp_path, **options)
    made.commit({(f"u{i}", i): {"total": i, "tags": ["a"] * (1 + i % 3)} for i in range(50)}, snapshots=True)
    made.commit({(f"u{i}", i): {"total": -i} for i in range(0, 50, 5)})
    return made


@pytest.mark.parametrize("backend", ["lmdb", "rocksdb"])
def test_snapshots_of_any_backend_are_read(tmp_path: Path, backend: str) -> None:
    made = filled(tmp_path, backend=backend)
    assert made.view.snapshots["totals"][0].backend == backend
    assert read(made) == made.model


def test_a_checkpoint_of_the_first_format_is_read(tmp_path: Path) -> None:
    shutil.copytree(FROZEN, tmp_path / "ck")
    stored = open_stored(str(tmp_path / "ck"))
    rows = [row for table in state_tables(stored, "everything") for row in table.to_pylist()]
    assert sum(row["seen"] for row in rows) == stored.view.rows == 800
    with StateReader(str(tmp_path / "ck")) as reader:
        for row in rows:
            assert reader.get("everything", row["user"]).values["items"] == row["items"]


def evolved(made: MadeCheckpoint) -> Keys:
    """Newer code: `total` is a decimal, `user` has one field more, `tags` is now `labels`, `late` is new."""
    fields = (
        StateField(0, "total", StateKind.VALUE, parse_type("decimal(30,2)")),
        StateField(1, "labels", StateKind.LIST, parse_type("string")),
        StateField(2, "seen", StateKind.MAP, parse_type("map<string,long>")),
        StateField(3, "user", StateKind.VALUE, parse_type("struct<name:string,age:long,city:string>")),
        StateField(4, "late", StateKind.VALUE, parse_type("boolean")),
    )
    declared = Declared(
        StateLayout("totals", LAYOUT.key, fields), {"labels": "tags"}, {"user": {"city": "?"}}
    )
    outcome = evolve(made.lineage, declared, allow_dropped_state=False)
    assert outcome.problems == ()
    made.declare(outcome.lineage)
    for values in made.model.values():
        if "tags" in values:
            values["labels"] = values.pop("tags")
        if "total" in values:
            values["total"] = Decimal(values["total"]).scaleb(0).quantize(Decimal("0.01"))
        if "user" in values:
            values["user"] = {**values["user"], "city": "?"}
    return made.model


@pytest.mark.parametrize("backend", ["lmdb", "rocksdb"])
def test_files_of_older_code_are_read_in_the_schema_in_force(tmp_path: Path, backend: str) -> None:
    made = MadeCheckpoint(tmp_path, backend=backend)
    made.commit({("a", i): {"total": i, "tags": ["x"], "user": {"name": "n", "age": i}} for i in range(9)})
    made.commit({("b", i): {"total": i, "tags": ["y"]} for i in range(9)}, snapshots=True)
    made.commit({("a", 1): {"total": 50, "user": {"name": "m", "age": 1}}})
    evolved(made)
    made.commit({("b", 2): {"total": Decimal("1.25"), "late": True}})
    found: Keys = {}
    for table in state_tables(open_stored(made.url), "totals"):
        assert table.column_names == ["user", "day", "total", "labels", "seen", "user_", "late", "key_group"]
        for row in table.to_pylist():
            states = {name: row[name] for name in ("total", "labels", "late")} | {"user": row["user_"]}
            found[row["user"], row["day"]] = {name: v for name, v in states.items() if v is not None}
    assert found == made.model
    with StateReader(made.url) as reader:
        for key, values in made.model.items():
            answer = reader.get("totals", {"user": key[0], "day": key[1]}).values
            assert {name: value for name, value in answer.items() if value is not None} == values


def test_runs_are_cut_between_keys_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = filled(tmp_path)
    monkeypatch.setattr(stored_state, "RUN_ENTRIES", 3)
    tables = list(state_tables(open_stored(made.url), "totals"))
    assert len(tables) > 10
    assert read(made) == made.model


@pytest.mark.parametrize("changes", [1, 7, 1_000_000])
def test_deltas_are_laid_over_in_blocks_of_any_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: int
) -> None:
    made = filled(tmp_path)
    made.rescale(3)
    made.commit({(f"u{i}", i): {"seen": {"p": i}} for i in range(0, 50, 7)})
    monkeypatch.setattr(stored_state, "BLOCK_CHANGES", changes)
    assert read(made) == made.model


def test_pieces_follow_the_files(tmp_path: Path) -> None:
    made = filled(tmp_path, parallelism=2)
    stored = open_stored(made.url)
    assert [str(piece) for piece in pieces(stored.view, "totals", stored.whole)] == ["0-3", "4-7"]
    part = KeyGroupRange(KeyGroup(3), KeyGroup(5))
    assert [str(piece) for piece in pieces(stored.view, "totals", part)] == ["3-3", "4-4"]


@pytest.mark.parametrize("prefix", ["data/", "snapshots/"])
def test_a_damaged_file_is_named_and_not_read_over(tmp_path: Path, prefix: str) -> None:
    made = filled(tmp_path)
    name = made.storage.list(prefix)[-1].name
    path = made.storage.local_path(name)
    assert path is not None
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()
    path.write_bytes(bytes(data))
    with pytest.raises(CorruptionError, match=name):
        read(made)


def test_a_commit_is_pinned_while_it_is_read_and_no_longer(tmp_path: Path) -> None:
    made = filled(tmp_path)
    stored = open_stored(made.url)
    with pinned(stored, "test"):
        (pin,) = read_pins(made.storage).records
        assert pin.commit == made.view.number
        assert pin.holder.startswith("test on ")
        assert pin.expires_ms > SystemClock().now_ms()
    assert read_pins(made.storage).records == ()


def test_a_reader_that_fails_leaves_no_pin(tmp_path: Path) -> None:
    made = filled(tmp_path)
    with pytest.raises(ZeroDivisionError), pinned(open_stored(made.url), "test"):
        raise ZeroDivisionError
    assert read_pins(made.storage).records == ()


def test_what_is_not_there_is_said_with_what_is(tmp_path: Path) -> None:
    made = filled(tmp_path)
    with pytest.raises(RestoreError, match="'other'; its keyed operators are: 'totals'"):
        list(state_tables(open_stored(made.url), "other"))
    with pytest.raises(RestoreError, match="commit 7 is not retained; choose one from 1 to 2"):
        open_stored(made.url, commit=7)
    with pytest.raises(RestoreError, match="epoch 9; there are those after epochs 1, 2"):
        open_stored(made.url, epoch=9)
    with pytest.raises(RestoreError, match="no checkpoint"):
        open_stored(str(tmp_path / "nowhere"))
