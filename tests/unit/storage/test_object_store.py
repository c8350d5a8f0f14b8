"""What an object store's misbehaviour becomes. The store is a socket that answers as the test says."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from holdfast.errors import DefinitionError, ObjectMissing, StorageError, StorageRefused, UnknownOutcome
from holdfast.storage.contract import Put
from holdfast.storage.object_store import ObjectStorage

Answer = Callable[[socket.socket], None]


def status(code: int, body: str = "") -> Answer:
    head = f"HTTP/1.1 {code} Said\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}"
    return lambda connection: connection.sendall(head.encode())


def hang_up(connection: socket.socket) -> None:
    connection.shutdown(socket.SHUT_RDWR)


class Server:
    """Answers the first request with the first answer, and so on; the last one again and again."""

    def __init__(self) -> None:
        self.answers: list[Answer] = [hang_up]
        self.requests: list[str] = []
        self.stopped = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self) -> None:
        while True:
            connection, _ = self.listener.accept()
            with connection:
                request = connection.recv(65_536).decode(errors="replace")
                if not request:
                    return
                self.requests.append(request.partition(" ")[0])
                self.answers[min(len(self.requests), len(self.answers)) - 1](connection)

    def never(self, connection: socket.socket) -> None:
        self.stopped.wait()

    def stop(self) -> None:
        self.stopped.set()
        # An empty request ends the thread.
        socket.create_connection(self.listener.getsockname()).close()
        self.thread.join(10)
        self.listener.close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    server = Server()
    keys(monkeypatch, server.url)
    yield server
    server.stop()


def keys(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_REGION", "us-east-1")


def storage() -> ObjectStorage:
    return ObjectStorage("s3://bucket/job", request_timeout=timedelta(milliseconds=300))


@pytest.mark.parametrize("code", [500, 502, 503, 408])
def test_a_failing_server_leaves_the_outcome_unknown_and_is_asked_once(server: Server, code: int) -> None:
    server.answers = [status(code)]
    with pytest.raises(UnknownOutcome, match=r"s3://bucket/job/commits/1 .*read it back"):
        storage().put_new("commits/1", b"1")
    assert server.requests == ["PUT"]


def test_a_connection_cut_after_sending_leaves_the_outcome_unknown(server: Server) -> None:
    server.answers = [hang_up]
    with pytest.raises(UnknownOutcome):
        storage().put_new("commits/1", b"1")


def test_no_answer_in_time_leaves_the_outcome_unknown(server: Server) -> None:
    server.answers = [server.never]
    with pytest.raises(UnknownOutcome, match="Timeout"):
        storage().put_new("commits/1", b"1")


def test_a_precondition_that_failed_means_exists(server: Server) -> None:
    server.answers = [status(412)]
    assert storage().put_new("commits/1", b"1") is Put.EXISTS
    assert server.requests == ["PUT"]


def test_a_conflict_means_exists_only_if_the_object_is_there(server: Server) -> None:
    there = 'HTTP/1.1 200 OK\r\nContent-Length: 7\r\nETag: "1"\r\nConnection: close\r\n'
    there += "Last-Modified: Wed, 21 Oct 2015 07:28:00 GMT\r\n\r\n"
    server.answers = [status(409), lambda connection: connection.sendall(there.encode())]
    assert storage().put_new("commits/1", b"1") is Put.EXISTS
    assert server.requests == ["PUT", "HEAD"]


def test_a_conflict_without_an_object_is_an_error_not_exists(server: Server) -> None:
    server.answers = [status(409), status(404)]
    with pytest.raises(StorageError, match="another write of it was under way; try again"):
        storage().put_new("commits/1", b"1")


@pytest.mark.parametrize("code", [401, 403])
def test_denied_credentials_name_the_place_and_the_settings(server: Server, code: int) -> None:
    server.answers = [status(code)]
    for call in (
        lambda: storage().put_new("a", b"1"),
        lambda: storage().put("a", b"1"),
        lambda: storage().get("a"),
        lambda: storage().list("a"),
    ):
        with pytest.raises(
            StorageError, match=r"s3://bucket/job/a: .*check the credentials .*AWS_ACCESS_KEY_ID"
        ) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_a_missing_bucket_is_not_a_missing_object(server: Server) -> None:
    server.answers = [status(404, "<Error><Code>NoSuchBucket</Code></Error>")]
    for call in (
        lambda: storage().put_new("a", b"1"),
        lambda: storage().get("a"),
        lambda: storage().list(""),
    ):
        with pytest.raises(StorageError, match="create the bucket"):
            call()
    server.answers = [status(404, "<Error><Code>NoSuchKey</Code></Error>")]
    with pytest.raises(ObjectMissing):
        storage().get("a")


def test_a_missing_container_of_azure_is_a_missing_bucket(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_USE_EMULATOR", "true")
    monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", server.url)
    azure = ObjectStorage("az://container/job", request_timeout=timedelta(seconds=5))
    said = "<Error><Code>ContainerNotFound</Code><Message>The container does not exist.</Message></Error>"
    server.answers = [status(404, said)]
    for call in (
        lambda: azure.put_new("a", b"1"),
        lambda: azure.put("a", b"1"),
        lambda: azure.get("a"),
        lambda: azure.get("a", length=1),
        lambda: azure.list(""),
        lambda: azure.delete(["a"]),
    ):
        with pytest.raises(StorageRefused, match=r"az://container/job.*create the bucket"):
            call()
    server.answers = [status(404, "<Error><Code>BlobNotFound</Code></Error>")]
    with pytest.raises(ObjectMissing):
        azure.get("a")


def test_an_unreachable_endpoint_is_an_error_and_nothing_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        endpoint = f"http://127.0.0.1:{free.getsockname()[1]}"
    keys(monkeypatch, endpoint)
    with pytest.raises(StorageError, match=r"s3://bucket/job/a: .*ConnectionRefused.*AWS_ENDPOINT_URL"):
        storage().put_new("a", b"1")


def test_plain_http_is_refused_beyond_this_machine_unless_it_is_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys(monkeypatch, "http://store.invalid:9000")
    for name, value in {"ACCOUNT_NAME": "anna", "ACCOUNT_KEY": "a2V5"}.items():
        monkeypatch.setenv(f"AZURE_STORAGE_{name}", value)
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", "http://store.invalid:9000")
    for url, variable in (("s3://bucket/job", "AWS_ALLOW_HTTP"), ("az://container/job", "AZURE_ALLOW_HTTP")):
        with pytest.raises(StorageRefused, match=f"use https, or set {variable}=true"):
            ObjectStorage(url).put_new("a", b"1")
        monkeypatch.setenv(variable, "true")
        with pytest.raises(StorageError) as reached:
            ObjectStorage(url).put_new("a", b"1")
        assert "use https" not in str(reached.value)


def test_azure_without_an_account_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(DefinitionError, match="AZURE_STORAGE_ACCOUNT_NAME"):
        ObjectStorage("az://container/job")
