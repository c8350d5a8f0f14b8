"""A look at a whole cluster, while others change it."""

from __future__ import annotations

from typing import Any, cast

import pytest

from holdfast.cluster.membership import Cluster
from holdfast.cluster.node_records import HolderRecord, NodeRecord, Unfit, written
from holdfast.cluster.ranking import is_free
from holdfast.cluster.zookeeper import Found

ROOT = "/holdfast/shop"
FAILED = Unfit(error="no mount", at_ms=0)


def node(**unfit: Unfit) -> bytes:
    return written(
        NodeRecord(
            name="a",
            instance="i",
            host="h",
            pid=1,
            since_ms=0,
            standby="cold",
            code={"counts": {}},
            unfit=unfit,
        )
    )


class ChangingZooKeeper:
    """Node `a` fails and frees its seat before the `at`-th request: first it writes why, then it lets go."""

    def __init__(self, at: int) -> None:
        self.requests, self.at = 0, at
        holder = HolderRecord(node="a", instance="i", since_ms=0, checkpoint="ck", code={})
        self.stored = {
            f"{ROOT}/nodes/a": node(),
            f"{ROOT}/seats/counts": b"",
            f"{ROOT}/seats/counts/holder": written(holder),
        }

    def _request(self) -> None:
        if self.requests == self.at:
            self.stored[f"{ROOT}/nodes/a"] = node(counts=FAILED)
            del self.stored[f"{ROOT}/seats/counts/holder"]
        self.requests += 1

    def children(self, path: str, watch: Any = None) -> list[str]:
        self._request()
        names = {
            name.removeprefix(f"{path}/").split("/")[0] for name in self.stored if name.startswith(f"{path}/")
        }
        return sorted(names)

    def read(self, path: str) -> Found | None:
        self._request()
        return Found(self.stored[path], 0, 0, 0) if path in self.stored else None


@pytest.mark.parametrize("at", range(6))
def test_a_look_that_finds_a_seat_free_finds_why(at: int) -> None:
    seen = Cluster(cast(Any, ChangingZooKeeper(at)), "shop").look()
    assert not is_free(seen.seats["counts"]) or seen.nodes["a"].unfit == {"counts": FAILED}
