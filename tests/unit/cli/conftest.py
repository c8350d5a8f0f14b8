from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.inspect.stored import MadeCheckpoint


@pytest.fixture
def made(tmp_path: Path) -> MadeCheckpoint:
    made = MadeCheckpoint(tmp_path, key_groups=4)
    made.commit({(f"u{i}", i): {"total": i, "tags": ["a", "b"]} for i in range(10)}, snapshots=True)
    made.commit({("u1", 1): {"total": 100, "seen": {"p": 1}}, ("u2", 2): {}})
    return made
