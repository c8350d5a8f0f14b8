"""A sink whose server is dead when the run starts refuses nothing: it is waited for."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast as hf
from holdfast.connectors.contract import CheckedSink
from holdfast.connectors.kafka import client

SINKS = {
    "kafka": lambda: hf.KafkaSink("127.0.0.1:1", "t", timeout_seconds=1),
    "postgres": lambda: hf.PostgresSink("t", dsn="postgresql://bob@127.0.0.1:1/db", timeout_seconds=1),
    "redis": lambda: hf.RedisSink("redis://127.0.0.1:1/0", "p", key="k", timeout_seconds=1),
}


@pytest.mark.parametrize("name", SINKS)
def test_a_server_that_is_dead_at_the_start_is_waited_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "REQUEST_SECONDS", 1.0)
    sink: Any = SINKS[name]()
    if isinstance(sink, CheckedSink):
        sink.check()
    with pytest.raises(hf.Unavailable, match=r"127\.0\.0\.1:1"):
        sink.lane_writer("job", "out").open(1)
