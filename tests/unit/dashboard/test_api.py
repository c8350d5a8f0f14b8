"""The control API over real HTTP: its verbs, what it refuses, and what a wrong token reaches (nothing)."""

from __future__ import annotations

import re
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.datastructures import URL
from starlette.requests import Request

from holdfast.checkpoint.chain.checkpoint import open_checkpoint
from holdfast.checkpoint.chain.terms import claim
from holdfast.checkpoint.log.incidents import record_failure
from holdfast.checkpoint.store.log_records import FailureRecord
from holdfast.clock import SystemClock
from holdfast.dashboard.api import BODY_BYTES_MAX, Api, Gate, application, is_loopback
from holdfast.dashboard.metrics import Metrics
from holdfast.dashboard.server import Server, listen, serve
from holdfast.errors import DefinitionError
from holdfast.runtime.control.request_server import Control
from holdfast.storage.contract import Storage
from holdfast.storage.local_directory import LocalStorage
from tests.unit.checkpoint.kept import draft
from tests.unit.runtime.control.control_kit import FakeJob, wait_until

FIXTURES = Path(__file__).parents[2] / "fixtures"
HOW_TO = Path(__file__).parents[3] / "docs" / "how-to"
TOKEN = "a-token-of-some-length"


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    storage = LocalStorage(tmp_path / "ck")
    chain = open_checkpoint(storage, "orders", 4, SystemClock(), identity="i").chain
    view = chain.load()
    for _ in range(3):
        view = chain.commit(view, draft(view)).view
    return storage


@pytest.fixture
def job(storage: Storage) -> FakeJob:
    return FakeJob(storage)


@pytest.fixture
def server(job: FakeJob) -> Iterator[Server]:
    with serve(job, port=0) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url) as client:
        yield client


@pytest.fixture
def leading(storage: Storage, job: FakeJob) -> Iterator[Control]:
    term = claim(storage, "run-1", "node-a", 4711, 1_760_000_000_000)
    with Control(storage, term, job, SystemClock(), lambda text: None, grace_seconds=1) as control:
        yield control


def names_in(storage: Storage) -> list[str]:
    return [entry.name for entry in storage.list("")]


def ended(client: httpx.Client, id: str) -> dict[str, Any]:
    told: dict[str, Any] = {}

    def has_ended() -> bool:
        told.update(client.get(f"/requests/{id}").json())
        return told["state"] in {"done", "refused", "failed"}

    wait_until(has_ended, f"{id} has ended")
    return told


def test_the_how_to_names_every_call_and_no_other() -> None:
    page = (HOW_TO / "control.md").read_text()
    told = set(re.findall(r"^\| `(GET|POST) (/[a-z]+(?:/\{[a-z]+\})?)", page, flags=re.MULTILINE))
    gate = application(Api(FakeJob(), Metrics("orders", SystemClock()), SystemClock()), None)
    assert isinstance(gate, Gate)
    routes: Any = gate.inside.routes  # type: ignore[attr-defined]
    answered = {(method, route.path) for route in routes for method in route.methods if method != "HEAD"}
    assert told == answered


def test_health_says_that_the_process_is_alive(client: httpx.Client) -> None:
    answer = client.get("/health")
    assert (answer.status_code, answer.json()) == (200, {"health": "ok"})


def test_ready_only_while_leading_and_running(client: httpx.Client, job: FakeJob) -> None:
    for phase, code in (("starting", 503), ("restoring", 503), ("running", 200), ("restarting", 503)):
        job.monitor.update(phase=phase)
        answer = client.get("/ready")
        assert (answer.status_code, answer.json()["phase"]) == (code, phase)
    job.monitor.update(phase="running")
    job.running = False
    assert client.get("/ready").status_code == 503


def test_status_is_the_progress_and_the_leader(client: httpx.Client, job: FakeJob, leading: Control) -> None:
    job.monitor.update(phase="running", epoch=7, lag_rows=12)
    told = client.get("/status").json()
    assert (told["job"], told["phase"], told["epoch"], told["lag_rows"]) == ("orders", "running", 7, 12)
    assert (told["leader"]["term"], told["leader"]["host"], told["leader"]["pid"]) == (1, "node-a", 4711)


def test_status_before_anybody_led(client: httpx.Client) -> None:
    assert client.get("/status").json()["leader"] is None


def test_checkpoints_are_the_retained_commits_newest_first(client: httpx.Client) -> None:
    told = client.get("/checkpoints").json()["checkpoints"]
    assert [commit["commit"] for commit in told] == [3, 2, 1]
    assert told[0]["last_epoch"] == 3


def test_failures_are_told_from_storage(client: httpx.Client, storage: Storage) -> None:
    failure = FailureRecord(
        at_ms=1, term=1, run="r", host="h", epoch=5, kind="StorageError", cause="c",
        message="the disk is full", decision="restart", delay_ms=1_000,
    )  # fmt: skip
    record_failure(storage, failure)
    (told,) = client.get("/failures").json()["failures"]
    assert (told["epoch"], told["message"], told["decision"]) == (5, "the disk is full", "restart")


def test_a_savepoint_is_triggered_then_polled(
    client: httpx.Client, job: FakeJob, leading: Control, tmp_path: Path
) -> None:
    job.gate.clear()
    job.given = {"id": "sp-1"}
    triggered = client.post("/savepoints", json={"url": f"{tmp_path}/sp"})
    assert triggered.status_code == 202
    id = triggered.json()["request"]
    assert triggered.headers["location"] == f"/requests/{id}"
    wait_until(lambda: client.get(f"/requests/{id}").json()["state"] == "running", "it runs")
    job.gate.set()
    told = ended(client, id)
    assert (told["state"], told["result"], told["verb"]) == ("done", {"id": "sp-1"}, "savepoint")
    assert "http from 127.0.0.1" in told["asked_by"]
    assert job.calls == [("savepoint", f"{tmp_path}/sp", "native")]


def test_rescale_and_stop_reach_the_job(client: httpx.Client, job: FakeJob, leading: Control) -> None:
    id = client.post("/rescale", json={"parallelism": 8}).json()["request"]
    assert ended(client, id)["state"] == "done"
    client.post("/stop", json={"drain": True})
    wait_until(lambda: len(job.calls) == 2, "the job was told")
    assert job.calls == [("rescale", 8), ("stop", None, True)]


def test_a_verb_is_on_record_when_no_leader_runs(client: httpx.Client) -> None:
    id = client.post("/stop", json={}).json()["request"]
    told = client.get(f"/requests/{id}").json()
    assert (told["state"], told["arguments"]) == ("waiting", {"savepoint": None, "drain": False})


@pytest.mark.parametrize(
    ("path", "body", "why"),
    [
        ("/rescale", b'{"parallelism": "8"}', "Expected `int`, got `str`"),
        ("/rescale", b"{}", "required field `parallelism`"),
        ("/rescale", b"", "required field `parallelism`"),
        ("/stop", b'{"now": true}', "unknown field `now`"),
        ("/stop", b'{"drain": 1}', "Expected `bool`"),
        ("/stop", b"{", "is not JSON"),
        ("/stop", b"[]", "is not a JSON object"),
        ("/stop", b"\xff", "is not JSON"),
        ("/savepoints", b'{"url": "here"}', "relative path"),
        ("/savepoints", b'{"url": "/x", "format": "zip"}', "Invalid enum value"),
    ],
)
def test_a_request_that_cannot_be_meant_is_refused_and_nothing_is_written(
    client: httpx.Client, storage: Storage, path: str, body: bytes, why: str
) -> None:
    before = names_in(storage)
    answer = client.post(path, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert why in answer.json()["error"]
    assert "\n" not in answer.json()["error"]
    assert names_in(storage) == before


def test_a_page_in_a_browser_cannot_stop_the_job(client: httpx.Client, storage: Storage) -> None:
    """Forms and scripts of other sites can send these types unasked, JSON not."""
    before = names_in(storage)
    for kind in ("application/x-www-form-urlencoded", "text/plain", "multipart/form-data", ""):
        answer = client.post("/stop", headers={"Content-Type": kind})
        assert answer.status_code == 415
    rebound = client.post("/stop", json={}, headers={"Host": "evil.example:8080"})
    assert rebound.status_code == 403
    assert names_in(storage) == before


def test_a_body_without_end_is_cut_off(client: httpx.Client) -> None:
    answer = client.post(
        "/stop", content=b" " * (BODY_BYTES_MAX + 1), headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 413


@pytest.mark.parametrize(
    ("method", "path", "code", "why"),
    [
        ("GET", "/dance", 404, "there is no /dance"),
        ("GET", "/stop", 405, "cannot be asked with GET"),
        ("POST", "/status", 405, "cannot be asked with POST"),
        ("GET", "/requests/1760000000000-00000000", 404, "there is no request"),
        ("GET", "/requests/..%2Fjob", 404, "there is no"),
        ("GET", "/requests/job", 400, "is not the id of a request"),
        ("GET", "/state/totals", 400, "the key is missing"),
        ("GET", "/state/totals?key=anna", 400, "is not JSON"),
    ],
)
def test_what_is_not_there_is_told_in_one_line(
    client: httpx.Client, method: str, path: str, code: int, why: str
) -> None:
    answer = client.request(method, path)
    assert (answer.status_code, list(answer.json())) == (code, ["error"])
    assert why in answer.json()["error"]


@pytest.fixture
def frozen(tmp_path: Path) -> Iterator[httpx.Client]:
    """The API over a checkpoint with state of every kind."""
    shutil.copytree(FIXTURES / "v1", tmp_path / "frozen")
    job = FakeJob(LocalStorage(tmp_path / "frozen"))
    with serve(job, port=0) as server, httpx.Client(base_url=server.url) as client:
        yield client


def test_the_state_of_a_key_is_read_from_the_newest_commit(frozen: httpx.Client) -> None:
    told = frozen.get("/state/sums", params={"key": '"u3"'}).json()
    values = [n for n in range(20 * 40) if n % 11 == 3]
    assert told["values"] == {"accumulator": {"n": len(values), "total": sum(values)}}
    assert (told["key"], told["found"], told["commit"], told["epoch"]) == ({"user": "u3"}, True, 20, 20)
    assert frozen.get("/state/sums", params={"key": '{"user": "u3"}'}).json() == told
    everything = frozen.get("/state/everything", params={"key": '"u3"'}).json()["values"]
    assert (everything["seen"], everything["note"]["name"]) == (len(values), "u3")


def test_a_key_without_state_is_not_found_and_a_wrong_one_is_refused(frozen: httpx.Client) -> None:
    absent = frozen.get("/state/sums", params={"key": '"nobody"'})
    assert (absent.status_code, absent.json()["found"]) == (200, False)
    wrong = frozen.get("/state/sums", params={"key": "[1, 2]"})
    assert (wrong.status_code, list(wrong.json())) == (400, ["error"])
    other = frozen.get("/state/nothing", params={"key": '"u3"'})
    assert other.status_code == 404
    assert "everything" in other.json()["error"]


def test_storage_that_fails_is_503(client: httpx.Client, job: FakeJob, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    job._storage = LocalStorage(tmp_path / "file")
    answer = client.get("/status")
    assert (answer.status_code, list(answer.json())) == (503, ["error"])


def test_metrics_are_prometheus_text(client: httpx.Client, job: FakeJob) -> None:
    job.monitor.epoch_done(1, rows=10, seconds=0.5)
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = {
        sample.name: sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    assert found["holdfast_rows_total"] == 10


@pytest.fixture
def guarded(job: FakeJob) -> Iterator[httpx.Client]:
    with serve(job, port=0, token=TOKEN) as server, httpx.Client(base_url=server.url) as client:
        yield client


WRONG = [
    {},
    {"Authorization": ""},
    {"Authorization": "Bearer"},
    {"Authorization": "Bearer wrong"},
    {"Authorization": f"Bearer {TOKEN}x"},
    {"Authorization": f"Bearer {TOKEN[:-1]}"},
    {"Authorization": f"Basic {TOKEN}"},
    {"Authorization": TOKEN},
]


@pytest.mark.parametrize("headers", WRONG, ids=str)
def test_a_wrong_token_gets_one_clear_error_and_touches_nothing(
    guarded: httpx.Client, storage: Storage, job: FakeJob, leading: Control, headers: dict[str, str]
) -> None:
    before = names_in(storage)
    for method, path in [
        ("POST", "/stop"), ("POST", "/savepoints"), ("POST", "/rescale"), ("GET", "/status"),
        ("GET", "/checkpoints"), ("GET", "/failures"), ("GET", "/metrics"), ("GET", "/state/x"),
        ("GET", "/requests/1760000000000-00000000"), ("GET", "/dance"), ("GET", "/health/"),
    ]:  # fmt: skip
        body = {"parallelism": 3} if method == "POST" else None
        answer = guarded.request(method, path, headers=headers, json=body)
        assert answer.status_code == 401, path
        assert list(answer.json()) == ["error"]
        assert "Authorization: Bearer <token>" in answer.json()["error"]
        assert TOKEN not in answer.text
    assert names_in(storage) == before
    assert job.calls == []


def test_the_host_header_does_not_say_what_is_asked_for(
    guarded: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What a Starlette before 1.0 makes of "Host: x/health?": the url's path is not the one that is routed by.
    monkeypatch.setattr(Request, "url", URL("http://x/health?/status"))
    assert guarded.get("/status").status_code == 401


def test_the_right_token_opens_everything(guarded: httpx.Client, job: FakeJob, leading: Control) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}", "Host": "jobs.example"}
    assert guarded.get("/status", headers=headers).status_code == 200
    assert guarded.post("/rescale", json={"parallelism": 3}, headers=headers).status_code == 202
    wait_until(lambda: job.calls == [("rescale", 3)], "the job was told")


def test_probes_need_no_token(guarded: httpx.Client) -> None:
    assert guarded.get("/health").status_code == 200
    assert guarded.get("/ready").status_code == 503


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "jobs.example", "localhost.evil.example", ""])
def test_a_host_that_others_reach_needs_a_token(job: FakeJob, host: str) -> None:
    with pytest.raises(DefinitionError, match="give a token"):
        serve(job, host=host, port=0)


def test_loopback_is_what_only_this_machine_reaches() -> None:
    assert [h for h in ("127.0.0.1", "127.9.9.9", "localhost", "::1", "[::1]") if not is_loopback(h)] == []


def test_any_host_will_do_with_a_token(job: FakeJob) -> None:
    with serve(job, host="0.0.0.0", port=0, token=TOKEN) as server:
        port = server.url.rpartition(":")[2]
        assert httpx.get(f"http://127.0.0.1:{port}/status").status_code == 401


@pytest.mark.parametrize("token", ["", "short", "line\nbreak here", "schlüssel-lang"])
def test_a_token_that_is_none_is_refused(job: FakeJob, token: str) -> None:
    with pytest.raises(DefinitionError, match="that is no token"):
        serve(job, port=0, token=token)


def test_a_port_that_is_taken_is_one_clear_error(server: Server, job: FakeJob) -> None:
    port = int(server.url.rpartition(":")[2])
    with pytest.raises(DefinitionError, match=f"127.0.0.1:{port} cannot be listened on"):
        serve(job, port=port)


def test_a_closed_server_answers_no_more_and_frees_its_port(job: FakeJob) -> None:
    server = serve(job, port=0)
    port = int(server.url.rpartition(":")[2])
    assert httpx.get(f"{server.url}/health").status_code == 200
    server.close()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/health")
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_nothing_is_asked_of_a_job_that_has_no_checkpoint_yet(tmp_path: Path) -> None:
    empty = LocalStorage(tmp_path / "ck")
    with serve(FakeJob(empty), port=0) as server:
        answer = httpx.post(f"{server.url}/stop", json={})
    assert answer.status_code == 409
    assert "there is no checkpoint" in answer.json()["error"]
    assert names_in(empty) == []


def test_several_jobs_are_each_below_their_name(storage: Storage, tmp_path: Path) -> None:
    orders, clicks = FakeJob(storage), FakeJob(LocalStorage(tmp_path / "other"))
    with (
        listen("127.0.0.1", 0, TOKEN).serve_all({"orders": orders, "clicks": clicks}) as server,
        httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {TOKEN}"}) as client,
    ):
        assert httpx.get(f"{server.url}/ready").status_code == 503
        assert httpx.get(f"{server.url}/jobs").status_code == 401
        assert httpx.get(f"{server.url}/jobs/orders/status").status_code == 401
        orders.monitor.update(phase="running", epoch=7)
        assert client.get("/ready").json() == {"ready": True, "jobs": {"orders": True, "clicks": False}}
        assert client.get("/jobs").json()["jobs"]["orders"] == {"phase": "running"}
        assert client.get("/jobs/orders/status").json()["epoch"] == 7
        assert "holdfast_epoch" in client.get("/jobs/clicks/metrics").text
        asked = client.post("/jobs/orders/stop", json={})
        assert client.get(asked.headers["Location"]).json()["verb"] == "stop"
        assert client.get("/status").status_code == 404
    assert orders.storage.list("requests/") != []
    assert clicks.storage.list("") == []
