"""Any history of epochs, undo, reopening and snapshots gives what a dictionary gives, in every backend."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.state.contract import (
    EMPTY_VERSION,
    DeltaStep,
    Entries,
    ShardState,
    SnapshotSource,
    StateTarget,
    Version,
)
from holdfast.state.local.backends import MEMORY_DIR, backend_named, open_state

BACKENDS = ["lmdb", "memory", "rocksdb"]
GROUPS = 4
Model = dict[bytes, bytes]

# Few short keys, so that histories meet on them; bytes around those that an encoding might trip over.
keys = st.builds(
    lambda group, rest: group.to_bytes(2, "big") + rest,
    st.integers(0, GROUPS - 1),
    st.binary(max_size=2) | st.sampled_from([b"\x00", b"\xff\xff", b"k" * 300]),
)
values = st.binary(max_size=3) | st.sampled_from([b"", b"v" * 5_000])
changes = st.dictionaries(keys, st.none() | values, max_size=8).map(lambda found: sorted(found.items()))
cuts = st.sampled_from([(first, end) for end in range(1, GROUPS + 1) for first in range(end)])
actions = st.one_of(
    st.tuples(st.just("apply"), changes),
    st.tuples(st.just("go back"), st.integers(0, 3)),
    st.tuples(st.just("reopen"), st.booleans()),
    st.tuples(st.just("move"), st.tuples(st.sampled_from(BACKENDS), cuts)),
)


@dataclass
class History:
    """A shard and, for every version of it, what a dictionary says it holds."""

    directory: Path
    backend: str
    chain: list[DeltaStep] = field(default_factory=list)
    models: dict[Version, Model] = field(default_factory=lambda: {EMPTY_VERSION: {}})
    made: int = 0

    def __post_init__(self) -> None:
        self.state = self.opened(
            self.directory / "shard", self.backend, StateTarget(EMPTY_VERSION, 0, GROUPS)
        )

    @property
    def version(self) -> Version:
        return self.chain[-1].version if self.chain else EMPTY_VERSION

    def opened(self, directory: Path, backend: str, target: StateTarget) -> ShardState:
        return open_state(directory, f"{target.first_group}-{target.end_group}", target, backend=backend)

    def play(self, action: str, argument: object) -> None:
        match action, argument:
            case "apply", list(entries):
                self.apply(entries)
            case "go back", int(depth):
                # The newest two epochs count as uncommitted: undo reaches them, deltas lead to the rest.
                self.chain = self.chain[: max(0, len(self.chain) - depth)]
                self.reopen()
            case "reopen", bool(closed_first):
                if closed_first:
                    self.state.close()
                self.reopen()
            case "move", (str(backend), (int(first), int(end))):
                self.move(backend, first, end)

    def apply(self, entries: Entries) -> None:
        self.made += 1
        version = Version(self.version.epoch + 1, 1, str(self.made))
        self.state.apply(self.version, version, entries, committed=max(0, version.epoch - 2))
        after: dict[bytes, bytes | None] = {**self.models[self.version], **dict(entries)}
        self.models[version] = {key: value for key, value in after.items() if value is not None}
        self.chain.append(DeltaStep(version, self.version, lambda: entries))

    def reopen(self) -> None:
        committed = max(0, self.version.epoch - 2)
        target = StateTarget(self.version, 0, GROUPS, (), tuple(self.chain), committed)
        before = self.state
        self.state = self.opened(self.directory / "shard", self.backend, target)
        before.close()

    def move(self, backend: str, first: int, end: int) -> None:
        """Snapshot, and open some of its key groups in another backend."""
        self.made += 1
        path = self.directory / f"snapshot-{self.made}"
        info = self.state.snapshot(path)
        assert info.version == self.version
        kind = backend_named(self.backend).snapshots
        source = SnapshotSource(
            info.version, 0, GROUPS, path, info.length, info.chunk_bytes, info.chunks, kind
        )
        target = StateTarget(info.version, first, end, (source,), (), info.version.epoch)
        moved = self.opened(self.directory / f"moved-{self.made}", backend, target)
        moved.verify_base()
        expected = {key: v for key, v in self.models[self.version].items() if first <= key[1] < end}
        assert dict(moved.scan(b"")) == expected
        moved.close()

    def check(self) -> None:
        model = self.models[self.version]
        assert list(self.state.scan(b"")) == sorted(model.items())
        assert self.state.version == self.version
        asked = [*model, b"\x00\x00never"]
        assert self.state.get_many(asked) == [model.get(key) for key in asked]


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=40, deadline=None)
@given(story=st.lists(actions, max_size=15))
def test_any_history_matches_a_dictionary(backend: str, story: list[tuple[str, object]]) -> None:
    # In memory where possible: RocksDB syncs at every opening, which a busy disk makes slow.
    place = MEMORY_DIR if MEMORY_DIR.is_dir() else None
    # What is left behind a lazy restore may still be copying there.
    with tempfile.TemporaryDirectory(dir=place, ignore_cleanup_errors=True) as directory:
        history = History(Path(directory), backend)
        for action, argument in story:
            history.play(action, argument)
            history.check()
        history.state.close()
