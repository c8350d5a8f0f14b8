"""A RedisSink on a Redis Cluster: everything of a sink in one slot, on the node that has it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from holdfast.connectors.contract import StagedPart
from holdfast.connectors.lanes import LANES, LaneMark, LaneRows, Outcome
from holdfast.connectors.redis.sink import RedisSink
from holdfast.errors import DefinitionError, Unavailable
from tests.services.redis_cluster import NODES, Cluster, redis_cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with redis_cluster() as cluster:
        yield cluster


def lane(*names: str, epoch: int = 1, before: LaneMark | None = None) -> LaneRows:
    table = pa.table({"k": list(names), "n": list(range(len(names)))})
    return LaneRows(
        0, epoch, before or LaneMark(0), len(names), 1, "", (StagedPart(0, len(names), lambda: table),)
    )


NAMES = [f"{{k{n}}}" for n in range(40)]
"""Keys with braces of their own: by themselves they would be in many slots."""


@pytest.mark.parametrize("form", ["hash", "json", "stream"])
def test_rows_and_marks_of_a_tagged_prefix_are_in_one_slot(cluster: Cluster, form: Any) -> None:
    prefix = f"{{{form}}}:totals"
    node, client = cluster.of(prefix)
    sink = RedisSink(node.url, prefix, form=form, key=() if form == "stream" else "k")
    sink.check()
    lanes = sink.lane_writer("job", "out").open(1)
    lanes.begin(0)
    assert lanes.write(lane(*NAMES)).outcome is Outcome.WRITTEN
    assert lanes.write(lane(*NAMES)).outcome is Outcome.ALREADY
    assert lanes.write(lane("z", epoch=2, before=LaneMark(1, 40))).outcome is Outcome.WRITTEN
    assert lanes.marks() == {0: LaneMark(2, 1)} | {number: LaneMark(0) for number in range(1, LANES)}
    shown = client.xlen(prefix) if form == "stream" else len(client.keys(f"{prefix}:*")) - 1
    assert shown == 41


@pytest.mark.parametrize("prefix", ["totals", "{}totals{a}", "totals}{", "{totals"])
def test_a_prefix_without_a_hash_tag_is_refused(cluster: Cluster, prefix: str) -> None:
    for node in cluster.nodes:
        with pytest.raises(DefinitionError, match=r"one slot; give a prefix with a hash tag, .*'{totals"):
            RedisSink(node.url, prefix, key="k").check()


def test_a_node_that_does_not_have_the_slot_is_refused_with_the_one_that_has(cluster: Cluster) -> None:
    owner, _ = cluster.of("{totals}")
    others = [node for node in cluster.nodes if node is not owner]
    assert len(others) == NODES - 1
    for node in others:
        with pytest.raises(DefinitionError, match="give the url of the node that has it") as refused:
            RedisSink(node.url, "{totals}", key="k").check()
        assert owner.url.removeprefix("redis://").removesuffix("/0") in str(refused.value)


def test_a_slot_that_moves_away_is_waited_for_and_nothing_is_shown_twice(cluster: Cluster) -> None:
    prefix = "{moving}"
    node, client = cluster.of(prefix)
    lanes = RedisSink(node.url, prefix, form="stream").lane_writer("job", "out").open(1)
    lanes.begin(0)
    lanes.write(lane("a"))
    kept = {key: client.dump(key) for key in client.keys(f"{prefix}*")}
    client.delete(*kept)
    here = cluster.nodes.index(node)
    cluster.move(prefix, (here + 1) % NODES)
    second = lane("b", epoch=2, before=LaneMark(1, 1))
    away = lanes.write(second)
    assert away.outcome is Outcome.UNAVAILABLE
    assert "no longer has the slot" in away.reason
    with pytest.raises(Unavailable):
        lanes.marks()
    cluster.move(prefix, here)
    for key, value in kept.items():
        client.restore(key, 0, value)
    assert lanes.write(second).outcome is Outcome.WRITTEN
    assert [of[b"k"] for _, of in client.xrange(prefix)] == [b"a", b"b"]
