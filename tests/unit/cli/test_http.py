"""`holdfast run --http`: what is refused before Spark starts, and the API beside a run."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer

import holdfast as hf
from holdfast.cli.http import address, answering, read_token, run_beside
from holdfast.cli.main import app
from holdfast.errors import DefinitionError
from holdfast.nodes.job_on_node import JobOnNode
from holdfast.runtime.job import Job
from holdfast.runtime.progress import Progress
from holdfast.storage.local_directory import LocalStorage
from tests.unit.runtime.control.control_kit import FakeJob


class Started(FakeJob):
    """A handle whose run ends when its status has been asked for, where there is an API to ask."""

    asked: httpx.Response | None = None

    def wait(self, timeout: float | None = None) -> Progress:
        if not self.said:
            return self.status()
        assert self.said[0].startswith("the control API is at http://127.0.0.1:")
        self.asked = httpx.get(f"{self.said[0].rpartition(' ')[2]}/status", headers=self.headers)
        return self.status()

    def __init__(self, storage: LocalStorage, said: list[str], headers: dict[str, str]) -> None:
        super().__init__(storage)
        self.said, self.headers = said, headers


class FakeDeclaration:
    """A job that starts, without Spark, what it is given."""

    name = "orders"

    def __init__(self, handle: Started | None = None) -> None:
        self.handle = handle
        self.runs: list[dict[str, Any]] = []

    def start(self, checkpoint: str, **options: Any) -> Started:
        assert self.handle is not None, "nothing was to be started"
        self.runs.append(options)
        return self.handle


def beside(http: str | None, token_file: Path | None, job: Any, said: list[str]) -> None:
    declared: Job = job
    run_beside(
        http,
        token_file,
        declared,
        "ck",
        on_progress=lambda p: None,
        on_message=said.append,
        until="exhausted",
    )


def test_the_api_answers_while_the_job_runs_and_no_longer(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "token").write_text("a-token-of-some-length\n")
    headers = {"Authorization": "Bearer a-token-of-some-length"}
    handle = Started(LocalStorage(tmp_path), said, headers)
    declared = FakeDeclaration(handle)
    beside("127.0.0.1:0", tmp_path / "token", declared, said)
    assert handle.asked is not None
    assert handle.asked.status_code == 200
    assert declared.runs[0]["until"] == "exhausted"
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{said[0].rpartition(' ')[2]}/health")


def test_without_an_address_the_job_runs_and_nothing_is_answered(tmp_path: Path) -> None:
    said: list[str] = []
    declared = FakeDeclaration(Started(LocalStorage(tmp_path), said, {}))
    beside(None, None, declared, said)
    assert said == []
    assert declared.runs[0]["until"] == "exhausted"


def test_mistakes_are_found_before_the_job_starts(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for http, token_file, why in (
            ("0.0.0.0:0", None, "give a token"),
            (f"127.0.0.1:{port}", None, "cannot be listened on"),
            ("8080", None, "is not an address"),
            ("127.0.0.1:0", tmp_path / "empty", "that is no token"),
            ("127.0.0.1:0", tmp_path / "missing", "cannot be read"),
            (None, tmp_path / "empty", "guards nothing"),
        ):
            with pytest.raises(DefinitionError, match=why):
                beside(http, token_file, FakeDeclaration(), [])


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:8080", "127.0.0.1", 8080),
        (":8080", "127.0.0.1", 8080),
        ("[::1]:80", "::1", 80),
        ("jobs.example:0", "jobs.example", 0),
    ],
)
def test_an_address_is_host_and_port(text: str, host: str, port: int) -> None:
    assert address(text) == (host, port)


@pytest.mark.parametrize("text", ["", "localhost", "localhost:", "localhost:http", "localhost:65536", "a:-1"])
def test_a_text_that_is_not_an_address_is_refused(text: str) -> None:
    with pytest.raises(DefinitionError, match="is not an address"):
        address(text)


def test_a_token_is_read_without_the_white_space_around_it(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("  secret-enough \n")
    assert read_token(tmp_path / "token") == "secret-enough"
    assert read_token(None) is None


def test_a_node_takes_every_option_of_run() -> None:
    commands = typer.main.get_command(app)
    assert isinstance(commands, typer.core.TyperGroup)
    given = {
        name: {option for parameter in commands.commands[name].params for option in parameter.opts}
        for name in ("run", "node")
    }
    assert given["run"] - given["node"] == set()


def test_the_jobs_of_a_node_are_answered_for_while_it_runs(tmp_path: Path) -> None:
    said: list[str] = []
    with answering("127.0.0.1:0", None, said.append) as answer:
        answer({"orders": JobOnNode(hf.Job("orders"), str(tmp_path), {})})
        url = said[0].rpartition(" ")[2]
        assert httpx.get(f"{url}/ready").json() == {"ready": False, "phase": "standing-by"}
        assert httpx.get(f"{url}/status").json()["leader"] is None
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health")
    with answering(None, None, said.append) as answer:
        answer({})
    with pytest.raises(DefinitionError, match="guards nothing"), answering(None, tmp_path, said.append):
        pass
