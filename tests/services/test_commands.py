"""The commands that look at a cluster or change who leads."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from holdfast.cli.main import app
from holdfast.cluster.zookeeper import ZooKeeperSettings
from holdfast.errors import DefinitionError
from holdfast.nodes.zookeeper_server import ZooKeeperServer, free_port
from tests.services.harness import Running, wait_until

Start = Callable[..., Running]
Command = Callable[..., Result]


@pytest.fixture
def command(server: ZooKeeperServer, cluster: str) -> Command:
    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, [*arguments, "--cluster", cluster, "--zookeeper", server.hosts])

    return run


def pair(start: Start) -> tuple[Running, Running]:
    a = start("a")
    wait_until(lambda: a.told("STARTED by term 1"), "a to lead", a.story)
    b = start("b")
    wait_until(lambda: b.told("is in cluster"), "b to stand by", b.story)
    return a, b


def test_status_shows_seats_nodes_terms_and_failovers(start: Start, command: Command) -> None:
    a, b = pair(start)
    wait_until(lambda: json.loads(command("status", "--json").stdout)["seats"][0]["term"] == 1, "a pulse")
    told = json.loads(command("status", "--json").stdout)
    (seat,) = told["seats"]
    assert (seat["job"], seat["holder"], seat["heir"], seat["phase"]) == ("counts", "a", "b", "running")
    assert [(node["node"], node["standby"], node["seats"]) for node in told["nodes"]] == [
        ("a", "cold", ["counts"]), ("b", "cold", []),
    ]  # fmt: skip
    assert [failover["node"] for failover in seat["failovers"]] == ["a"]
    text = command("status").stdout
    assert "cluster" in text
    assert "standing by" in text
    b.leave()
    a.leave()
    assert json.loads(command("status", "--json").stdout)["nodes"] == []


def test_handover_says_who_has_the_seat_now_and_refuses_what_cannot_be(
    start: Start, command: Command
) -> None:
    a, b = pair(start)
    done = command("handover", "--json")
    assert done.exit_code == 0, done.output + a.story() + b.story()
    assert json.loads(done.stdout)["taker"] == "b"
    refused = command("handover", "--to", "nobody")
    assert refused.exit_code == 2
    assert "error: node 'nobody' cannot take 'counts'; those who can: a" in refused.stderr
    a.leave()
    alone = command("handover")
    assert "no other node could take 'counts' from b; start one first" in alone.stderr


def test_an_unknown_cluster_is_refused(command: Command) -> None:
    told = command("status")
    assert told.exit_code == 2
    assert "error: ZooKeeper knows no cluster" in told.stderr


def test_status_wants_to_know_of_what() -> None:
    told = CliRunner().invoke(app, ["status", "--cluster", "c"])
    assert told.exit_code == 2
    assert "error: say whose status" in told.stderr


def test_the_password_comes_from_a_file_that_must_hold_one(command: Command, tmp_path: Path) -> None:
    (tmp_path / "auth").write_text("anna\n")
    told = command("status", "--zookeeper-auth-file", str(tmp_path / "auth"))
    assert "does not hold user:password; write it like that" in told.stderr


def test_holdfast_zookeeper_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "holdfast", "zookeeper", "--port", str(port), "--data-dir", "zk"]
    server = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        assert f"ZooKeeper answers at 127.0.0.1:{port}" in server.stdout.readline()
        taken = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert taken.returncode == 2
        assert f"error: port {port} of 127.0.0.1 is taken" in taken.stderr
        server.send_signal(signal.SIGINT)
        assert server.wait(20) == 0
    finally:
        server.kill()
        server.wait()
    assert not ZooKeeperServer(tmp_path / "zk", port).answers()


@pytest.mark.parametrize("seconds", [0.1, 3_600.0])
def test_a_session_time_out_that_cannot_be_meant_is_refused(seconds: float) -> None:
    with pytest.raises(DefinitionError, match="out of range"):
        ZooKeeperSettings(hosts="h:1", session_seconds=seconds)
