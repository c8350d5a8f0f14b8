"""Secrets are references: the value is shown to client libraries and to nothing else."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.errors import DefinitionError, MachineError
from holdfast.graph.fingerprint import fingerprint
from holdfast.secret import Secret, refuse_password_in

VALUE = "s3cret-of-the-test"


@pytest.fixture(autouse=True)
def variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_TEST_SECRET", VALUE)


class Guarded:
    """A source that holds a secret, as connectors do."""

    schema = "a long"
    replayable = True

    def __init__(self, password: Secret) -> None:
        self.password = password

    def reader(self, notes: object) -> object:
        raise NotImplementedError


def fingerprint_with(secret: Secret) -> str:
    job = hf.Job("guarded")
    job.source(Guarded(secret), uid="in").sink(hf.MemorySink(), uid="out")  # type: ignore[arg-type]
    return fingerprint(job.graph())


def test_a_variable_is_read_when_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = Secret.env("HOLDFAST_TEST_SECRET")
    assert secret.resolve() == VALUE
    monkeypatch.setenv("HOLDFAST_TEST_SECRET", "rotated")
    assert secret.resolve() == "rotated"


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_file_is_read_without_its_last_line_break(tmp_path: Path, end: str) -> None:
    (tmp_path / "secret").write_bytes(f" {VALUE} ".encode() + end.encode())
    assert Secret.file(tmp_path / "secret").resolve() == f" {VALUE} "


def test_the_value_is_in_no_picture_of_the_reference(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(VALUE)
    for secret in (Secret.env("HOLDFAST_TEST_SECRET"), Secret.file(tmp_path / "secret")):
        assert secret.resolve() == VALUE
        shown = [repr(secret), str(secret), f"{secret}", repr({"password": secret})]
        assert VALUE not in "".join(shown)
        assert VALUE.encode() not in pickle.dumps(secret)
        assert pickle.loads(pickle.dumps(secret)) == secret
    assert repr(Secret.env("PGPASSWORD")) == "Secret.env('PGPASSWORD')"


def test_a_fingerprint_knows_the_name_and_not_the_value(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint_with(Secret.env("HOLDFAST_TEST_SECRET"))
    monkeypatch.setenv("HOLDFAST_TEST_SECRET", "rotated")
    assert fingerprint_with(Secret.env("HOLDFAST_TEST_SECRET")) == before
    assert fingerprint_with(Secret.env("ANOTHER")) != before


def test_what_is_missing_is_named_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_TEST_SECRET")
    with pytest.raises(MachineError, match=r"HOLDFAST_TEST_SECRET is not set; provide it .*every executor"):
        Secret.env("HOLDFAST_TEST_SECRET").resolve()
    monkeypatch.setenv("HOLDFAST_TEST_SECRET", "")
    with pytest.raises(MachineError, match="is empty"):
        Secret.env("HOLDFAST_TEST_SECRET").resolve()
    with pytest.raises(MachineError, match=r"none.*No such file.*provide the file"):
        Secret.file(tmp_path / "none").resolve()


def test_a_password_given_for_a_name_is_not_shown() -> None:
    for wrong in ("hunter2!", "", "a b"):
        with pytest.raises(DefinitionError) as refused:
            Secret.env(wrong)
        assert "hunter2" not in str(refused.value)
    with pytest.raises(DefinitionError) as refused:
        Secret.file("hunter2!")
    assert "hunter2" not in str(refused.value)


def test_what_a_library_says_is_shown_without_the_value() -> None:
    secret = Secret.env("HOLDFAST_TEST_SECRET")
    assert secret.hide_in(f"login of bob:{VALUE} failed") == "login of bob:*** failed"
    assert Secret.env("HOLDFAST_TEST_NOT_SET").hide_in("login failed") == "login failed"


@pytest.mark.parametrize(
    "url",
    [
        "redis://:hunter2@localhost:6379/0",
        "postgresql://bob:hunter2@localhost/db",
        "postgresql://bob:hun/ter2@localhost/db",
        "amqp://bob:hunter2@localhost:5672/%2f",
        "postgresql://localhost/db?user=bob&password=hunter2",
        "host=localhost user=bob password=hunter2",
        "host=localhost PASSWORD = 'hunter2'",
        "rediss://localhost:6379/0?ssl_keyfile=/etc/me.key&ssl_password=hunter2",
        "amqps://localhost/%2F?ssl_options=%7B%27keyfile%27%3A%27k%27%2C%27password%27%3A%27hunter2%27%7D",
        "host=localhost oauth_client_secret=hunter2",
        "postgresql://localhost/db?scram_client_key=hunter2",
    ],
)
def test_a_password_in_a_url_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(DefinitionError, match=r"dsn=.*hf\.Secret\.env") as refused:
        refuse_password_in(url, "dsn")
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis://localhost:6379/0",
        "redis://h1:6379,h2:6379/0",
        "postgresql://bob@localhost:5432/db?application_name=a",
        "postgresql://bob:@localhost/db",
        "host=localhost user=bob dbname=passwords",
        "localhost:9092",
    ],
)
def test_a_url_without_a_password_passes(url: str) -> None:
    refuse_password_in(url, "url")


def test_a_password_that_is_written_down_is_refused_by_every_connector_and_not_shown() -> None:
    text: Any = "hunter2"
    made: list[Callable[[], object]] = [
        lambda: hf.PostgresSink("t", dsn="postgresql://127.0.0.1/x", password=text),
        lambda: hf.TableSource("t", dsn="postgresql://127.0.0.1/x", by="txid", password=text),
        lambda: hf.RedisSink("redis://127.0.0.1/0", "p", key="k", password=text),
        lambda: hf.RedisStreamSource("redis://127.0.0.1/0", "s", schema="n long", password=text),
        lambda: hf.RabbitSink("amqp://127.0.0.1/%2F", "q", password=text),
        lambda: hf.RabbitSource("amqp://127.0.0.1/%2F", "q", schema="n long", password=text),
        lambda: hf.KafkaSource("127.0.0.1:9092", "t", options={"sasl.password": text}),
        lambda: hf.IcebergSink("a.b", properties={"s3.secret-access-key": text}),
        lambda: hf.IcebergSink("a.b", properties={"adls.connection-string": f"AccountKey={text}"}),
        lambda: hf.IcebergSink("a.b", properties={"header.Authorization": f"Bearer {text}"}),
        lambda: hf.IcebergSink("a.b", properties={"uri": "postgresql://bob:hunter2@localhost/db"}),
        lambda: hf.IcebergSink("a.b", properties={"token": text}),
    ]
    for make in made:
        with pytest.raises(DefinitionError, match=r"hf\.Secret\.env") as refused:
            make()
        assert "hunter2" not in str(refused.value)
