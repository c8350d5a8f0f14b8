"""A sink in which rows replace others is given rows whose order is known, or is refused."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast as hf
from holdfast.graph.guarantees import check_guarantee
from holdfast.graph.validate import mistakes

DSN = "postgresql://127.0.0.1:1/x"


def wrong(
    sink: hf.PostgresSink | hf.RedisSink, *, transformed: bool = False, operator: bool = True
) -> list[str]:
    job = hf.Job("job")
    rows = job.source(hf.MemorySource([("a", 1)], schema="user string, n long"), uid="in")
    stream = rows.key_by("user").aggregate(n=hf.sum("n"), uid="sums") if operator else rows
    (stream.transform(lambda frame: frame) if transformed else stream).sink(sink, uid="out")
    assert check_guarantee(job.graph(), "exactly-once")
    return [str(each) for each in mistakes(job.graph())]


def sink(**how: object) -> hf.PostgresSink:
    given: dict[str, Any] = {"mode": "upsert", "key": "user", **how}
    return hf.PostgresSink("t", dsn=DSN, timeout_seconds=1, **given)


def test_the_key_contains_that_of_the_operator_or_an_order_is_given() -> None:
    assert wrong(sink()) == []
    assert wrong(sink(key=("n", "user"))) == []
    assert wrong(hf.PostgresSink("t", dsn=DSN, timeout_seconds=1), operator=False) == []
    assert wrong(sink(key="n", order_by="n")) == []
    assert wrong(sink(order_by="n"), operator=False) == []


@pytest.mark.parametrize(
    ("how", "stream", "why"),
    [
        ({"key": "n"}, {}, "the operator before it has the key"),
        ({}, {"transformed": True}, "no operator gives them out"),
        ({}, {"operator": False}, "no operator gives them out"),
    ],
)
def test_rows_of_a_key_that_different_tasks_may_write_are_refused(
    how: dict[str, object], stream: dict[str, bool], why: str
) -> None:
    (found,) = wrong(sink(**how), **stream)
    assert why in found
    assert "or give order_by=" in found


def test_hashes_and_json_in_redis_replace_others_and_entries_of_a_stream_do_not() -> None:
    def sink(**how: Any) -> hf.RedisSink:
        return hf.RedisSink("redis://127.0.0.1:1/0", "totals", **how)

    for form in ("hash", "json"):
        assert wrong(sink(form=form, key="user")) == []
        (found,) = wrong(sink(form=form, key="n"))
        assert "the operator before it has the key" in found
    assert wrong(sink(form="stream"), operator=False) == []
