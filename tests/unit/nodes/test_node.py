"""What a node makes of the end of a run when it was told to end itself. ZooKeeper and the run are played."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import holdfast as hf
from holdfast.cluster.zookeeper import ZooKeeperSettings
from holdfast.errors import (
    DefinitionError,
    HoldfastError,
    SessionLost,
    SinkRefused,
    StopUnfinished,
    Unpublished,
)
from holdfast.nodes.node import Node
from holdfast.nodes.registration import NodeSettings


@pytest.fixture
def node(tmp_path: Path) -> Node:
    job = hf.Job("counts")
    job.source(hf.MemorySource([], schema="n long"), uid="in").sink(hf.MemorySink(), uid="out")
    reached = ZooKeeperSettings(hosts="127.0.0.1:1", session_seconds=10.0)
    settings = NodeSettings(cluster="c", zookeeper=reached)
    one = Node([job], str(tmp_path), settings, {}, lambda text: None, lambda progress: None)
    one._keeper = cast(Any, Keeper())
    return one


class Keeper:
    """Remembers which jobs are over, and which are left to other nodes."""

    def __init__(self) -> None:
        self.over: list[str] = []
        self.left: list[str] = []
        self.all_over = False
        self.lags: dict[str, Any] = {}

    def end(self, job: str, how: str, error: str = "") -> None:
        self.over.append(f"{job} {how} {error}".strip())

    def cool(self, job: str) -> None:
        self.left.append(job)

    def feed(self, seat: Any, event: Any) -> None: ...

    def beat(self) -> None: ...

    def look(self, watch: Any) -> bool:
        raise DefinitionError("job 'counts' is not as node other leads it")


def end(node: Node, failure: HoldfastError | None, is_handed_on: bool = True) -> None:
    """`is_handed_on`: the node has told it to end; else a person has stopped the job."""
    (job,) = node.jobs.values()
    seat: Any = SimpleNamespace(job=job, forget_run=lambda: None, stand_by=lambda: None)
    run: Any = SimpleNamespace(failure=failure, is_handed_on=is_handed_on)
    node._ended(seat, run)


def test_a_node_that_was_told_to_end_says_that_it_could_not_finish(node: Node) -> None:
    node.leave()
    end(node, StopUnfinished("the Spark session ended"))
    assert node.told_to_leave
    assert isinstance(node._failure, StopUnfinished)


def test_a_seat_that_was_handed_over_unfinished_is_left_to_the_others(node: Node) -> None:
    end(node, StopUnfinished("storage is away"))
    assert node._failure is None
    assert not node._leaving.is_set()


def test_a_node_that_can_do_no_more_was_not_told_to_end(node: Node) -> None:
    """Its process starts again."""
    end(node, SessionLost("Spark is gone"))
    assert isinstance(node._failure, SessionLost)
    assert node._leaving.is_set()
    assert not node.told_to_leave


def test_a_job_that_was_stopped_with_epochs_unpublished_is_over_and_not_taken_on_elsewhere(
    node: Node,
) -> None:
    end(node, Unpublished({"out": 3}), is_handed_on=False)
    keeper = cast(Any, node._keeper)
    assert (keeper.over, keeper.left, node._failure) == (["counts stopped"], [], None)


def test_a_seat_that_is_handed_over_with_epochs_unpublished_is_left_to_who_shows_them(node: Node) -> None:
    end(node, Unpublished({"out": 3}))
    keeper = cast(Any, node._keeper)
    assert (keeper.over, keeper.left, node._failure) == ([], ["counts"], None)


@pytest.mark.parametrize("is_handed_on", [False, True])
def test_a_run_that_ended_in_good_order_ends_the_job_unless_another_node_is_to_go_on(
    node: Node, is_handed_on: bool
) -> None:
    end(node, None, is_handed_on)
    keeper = cast(Any, node._keeper)
    assert keeper.over == ([] if is_handed_on else ["counts stopped"])


@pytest.mark.parametrize("is_handed_on", [False, True])
def test_a_job_that_has_come_to_its_end_with_a_sink_that_refuses_is_over_and_has_not_failed(
    node: Node, is_handed_on: bool
) -> None:
    """Other parts of it come to their end, too; the node ends with the refusal."""
    end(node, SinkRefused("sink 'out' refuses"), is_handed_on)
    keeper = cast(Any, node._keeper)
    assert (keeper.over, keeper.left) == (["counts finished sink 'out' refuses"], [])
    assert isinstance(node._failure, SinkRefused)
    assert not node._leaving.is_set()


def test_a_node_that_ends_does_not_mind_that_its_jobs_are_led_with_other_code(node: Node) -> None:
    """Those of newer code take its seats as soon as it gives them up."""
    played: Any = SimpleNamespace(connected=True, tell_lag=lambda lags: None)
    node._zookeeper = node._registration = played
    node._joined = node._dirty = True
    with pytest.raises(DefinitionError, match="other leads it"):
        node._mind_cluster()
    node._dirty = True
    node.leave()
    node._mind_cluster()
