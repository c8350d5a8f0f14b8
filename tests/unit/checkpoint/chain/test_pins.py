"""Pins that end by themselves: a reader that died keeps nothing for ever."""

from __future__ import annotations

import pytest

from holdfast.checkpoint.chain.commits import Chain
from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.chain.pins import pin
from holdfast.checkpoint.chain.retention import Retention
from holdfast.checkpoint.chain.view import EMPTY
from tests.unit.checkpoint.kept import MemoryStorage, grow


@pytest.mark.parametrize(("expires_ms", "oldest"), [(0, 2), (1_000, 2), (5, 18)])
def test_a_pin_holds_retention_back_until_its_time_and_no_longer(expires_ms: int, oldest: int) -> None:
    """Commit N of this chain says that it is N o'clock."""
    storage = MemoryStorage()
    chain = Chain(storage, retain=3)
    view = grow(chain, EMPTY, 3)
    pin(History(storage), "reader", 2, "somebody", 3, expires_ms=expires_ms)
    view = grow(chain, view, 18)
    swept = Retention(chain).after_commit(view)
    assert swept is not None
    assert swept.oldest == oldest
