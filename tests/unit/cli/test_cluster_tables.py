"""A cluster in words."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from holdfast.cli.cluster_tables import cluster_picture


def shown(lag: dict[str, Any]) -> str:
    node = {
        "node": "b", "host": "h", "pid": 1, "since_ms": 0, "standby": "hot", "seats": [], "jobs": ["counts"],
        "unfit": {}, "lag": lag,
    }  # fmt: skip
    out = io.StringIO()
    Console(file=out, width=200).print(
        cluster_picture({"cluster": "shop", "now_ms": 5_000, "seats": [], "nodes": [node], "replicas": []})
    )
    return out.getvalue()


@pytest.mark.parametrize(
    ("lag", "words"),
    [
        ({"epoch": 7, "epochs": 0, "ms": 0, "problem": ""}, "counts: nothing, at epoch 7"),
        ({"epoch": 7, "epochs": 2, "ms": 1_500, "problem": ""}, "counts: 2 epochs, 1.5 s"),
        ({"epoch": 7, "epochs": 2, "ms": 0, "problem": "no route"}, "CANNOT FOLLOW since epoch 7: no route"),
    ],
)
def test_how_far_a_standby_is_behind_is_told(lag: dict[str, Any], words: str) -> None:
    assert words in shown({"counts": lag})


def test_a_node_that_follows_nobody_is_not_said_to_be_behind() -> None:
    assert "epoch" not in shown({}).split("behind")[1]


def test_every_phase_of_a_failover_is_readable_on_a_narrow_terminal() -> None:
    failover = {
        "at_ms": 0, "term": 12, "node": "node-b", "standby": "warm", "before": "node-a",
        "reason": "its session ended", "detect_ms": 10_200, "take_over_ms": 178_900, "restore_ms": 200,
        "replay_ms": 85_900,
    }  # fmt: skip
    seat = {
        "job": "counts", "holder": None, "term": 12, "epoch": 7, "survives": 0, "over": None,
        "handing_over": None, "heard_ms": None, "heir": None, "phase": None, "failovers": [failover],
    }  # fmt: skip
    out = io.StringIO()
    found = {"cluster": "shop", "now_ms": 5_000, "seats": [seat], "nodes": [], "replicas": []}
    Console(file=out, width=80).print(cluster_picture(found))
    _, _, failovers = out.getvalue().partition("starts and failovers of counts, newest last")
    for words in ("detect", "take over", "restore", "replay", "10.2 s", "178.9 s", "0.2 s", "85.9 s"):
        assert words in failovers
