"""The phases of a takeover, from what the run says of itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from holdfast.nodes.run import Predecessor, Takeover
from holdfast.runtime.progress import Progress


def told(*changes: dict[str, Any]) -> Takeover:
    """One that has heard of these, a second after another."""
    takeover, now = Takeover(0.0, Predecessor()), Progress(job="orders")
    for second, change in enumerate(changes, 1):
        now = replace(now, **change)
        takeover.note(now, float(second))
    return takeover


def test_a_takeover_ends_with_the_first_commit_of_the_run() -> None:
    takeover = told({"term": 2, "phase": "restoring"}, {"phase": "running", "commit": 7}, {"commit": 8})
    assert (takeover.claimed, takeover.running, takeover.committed) == (1.0, 2.0, 3.0)


def test_what_others_commit_while_a_member_joins_is_not_the_end_of_its_takeover() -> None:
    """It may load the checkpoint again, from a newer commit, before it has run anything."""
    joining = ({"term": 2, "phase": "restoring"}, {"phase": "joining", "commit": 7}, {"commit": 12})
    assert told(*joining).committed is None
    takeover = told(*joining, {"commit": 13}, {"phase": "running"})
    assert (takeover.running, takeover.committed) == (2.0, 5.0)
    record = takeover.record("b", "cold", now_ms=0)
    assert (record.restore_ms, record.replay_ms) == (1_000, 3_000)
