"""What a node refuses, each in one line that says what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.clock import SystemClock
from holdfast.cluster.zookeeper import ZooKeeper, ZooKeeperSettings
from holdfast.errors import DefinitionError, HoldfastError, RestoreError, RetryableError
from holdfast.nodes.zookeeper_server import ZooKeeperServer, free_port
from tests.services.harness import Running, steady, wait_until

Start = Callable[..., Running]


def refusal(node: Running, kind: type[HoldfastError]) -> str:
    wait_until(lambda: not node.alive, f"{node.name} to be refused", node.story)
    assert isinstance(node.failure, kind), f"{node.failure!r}\n{node.story()}"
    assert "\n" not in str(node.failure)
    return str(node.failure)


def holding(node: Running) -> Running:
    wait_until(lambda: node.told("TAKING THE SEAT"), f"{node.name} to lead", node.story)
    return node


def test_a_zookeeper_that_does_not_answer_is_named() -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    zookeeper = ZooKeeper(ZooKeeperSettings(hosts=nowhere), lambda change: None, SystemClock())
    with pytest.raises(RetryableError, match=f"{nowhere} did not answer within 0.5 s"):
        zookeeper.connect(0.5)


def test_a_node_that_reaches_no_zookeeper_ends_and_has_touched_nothing(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ZooKeeper.connect, "__defaults__", (0.5,))
    nowhere = f"127.0.0.1:{free_port()}"
    told = refusal(start("a", at=nowhere), RetryableError)
    assert f"{nowhere} did not answer within 0.5 s; check the address, whether it runs" in told
    assert not (tmp_path / "ck").exists()


def test_a_wrong_password_is_refused(start: Start) -> None:
    holding(start("a", user="anna", password="right"))
    told = refusal(start("b", user="anna", password="wrong"), DefinitionError)
    assert "user 'anna'; check the user and the password" in told
    assert "anybody without a password" in refusal(start("c"), DefinitionError)


def test_a_node_with_other_code_than_the_leader_is_refused_with_what_differs(start: Start) -> None:
    holding(start("a"))
    told = refusal(start("b", steady(version=2)), DefinitionError)
    assert "transform 1 differs" in told
    assert "sink out" not in told, "that part is the same"
    upgraded = start("c", steady(version=2), allow_other_code=True)
    wait_until(lambda: upgraded.told("is in cluster"), "c to stand by", upgraded.story)


def test_a_checkpoint_of_another_cluster_is_refused_until_it_is_moved(start: Start, cluster: str) -> None:
    first = holding(start("a"))
    told = refusal(start("b", cluster="other"), RestoreError)
    assert f"belongs to cluster {cluster!r}" in told
    first.leave()
    refusal(start("c", cluster="other"), RestoreError)
    holding(start("d", cluster="other", move_checkpoint=True))


def test_the_same_cluster_name_at_another_zookeeper_is_another_cluster(
    start: Start, cluster: str, server: ZooKeeperServer
) -> None:
    """Its ZooKeeper knows it under another id: two leaders would take turns without end."""
    holding(start("a"))
    elsewhere = f"{server.hosts}/elsewhere"
    zookeeper = ZooKeeper(ZooKeeperSettings(hosts=server.hosts), lambda change: None, SystemClock())
    zookeeper.connect()
    zookeeper.create_open("/elsewhere")
    zookeeper.close()
    assert "belongs to cluster" in refusal(start("b", at=elsewhere), RestoreError)


def test_a_path_that_is_not_in_zookeeper_is_refused(start: Start, server: ZooKeeperServer) -> None:
    told = refusal(start("a", at=f"{server.hosts}/nowhere"), DefinitionError)
    assert "/nowhere is not there in ZooKeeper; create it, or leave it out" in told


def test_two_nodes_of_one_name_are_refused(start: Start) -> None:
    holding(start("a"))
    assert "a node named 'a' is in cluster" in refusal(start("a"), DefinitionError)


def test_a_place_that_holds_something_else_is_left_alone(start: Start, tmp_path: Path) -> None:
    (tmp_path / "ck").mkdir()
    (tmp_path / "ck" / "letter.txt").write_text("dear all")
    assert "is not empty and holds no checkpoint" in refusal(start("a"), RestoreError)
    assert sorted(path.name for path in (tmp_path / "ck").iterdir()) == ["letter.txt"]
