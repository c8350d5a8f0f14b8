"""Orders reach the processes of the job: each is suffered once, by whom it is meant for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.chaos.inside import disturbances
from holdfast.chaos.inside.disturbances import (
    ARM,
    CHECKPOINT,
    ROUND_VARIABLE,
    WRAPPER,
    JumpingClock,
    Order,
    Orders,
)
from holdfast.clock import SystemClock
from holdfast.errors import StorageError, UnknownOutcome
from holdfast.storage import urls
from holdfast.storage.contract import Storage


@pytest.fixture
def orders(tmp_path: Path) -> Orders:
    orders = Orders(tmp_path)
    orders.prepare()
    return orders


@pytest.fixture
def storage(tmp_path: Path, orders: Orders, monkeypatch: pytest.MonkeyPatch) -> Storage:
    monkeypatch.setenv(ROUND_VARIABLE, str(tmp_path))
    monkeypatch.setenv(urls.WRAPPER_VARIABLE, WRAPPER)
    monkeypatch.setattr(disturbances, "_here", "task")
    return urls.open_storage(str(tmp_path / CHECKPOINT))


def test_an_order_is_suffered_once(storage: Storage, orders: Orders) -> None:
    orders.give(Order(id="f1", action="fail", operation="put", name="data/*"))
    storage.put("other", b"1")
    assert not orders.taken("f1")
    with pytest.raises(StorageError):
        storage.put("data/x", b"1")
    assert orders.taken("f1")
    storage.put("data/x", b"1")
    assert storage.get("data/x") == b"1"


def test_a_call_without_an_answer_may_have_been_done(storage: Storage, orders: Orders) -> None:
    orders.give(Order(id="f1", action="lose-answer"))
    with pytest.raises(UnknownOutcome):
        storage.put("a", b"1")
    assert storage.get("a") == b"1"
    orders.give(Order(id="f2", action="lose-request"))
    with pytest.raises(UnknownOutcome):
        storage.put("b", b"1")
    assert storage.size("b") is None


def test_an_order_for_the_driver_is_not_for_a_task(
    storage: Storage, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.give(Order(id="f1", action="fail", where="driver"))
    storage.put("a", b"1")
    assert not orders.taken("f1")
    monkeypatch.setattr(disturbances, "_here", "driver")
    with pytest.raises(StorageError):
        storage.put("a", b"1")


def test_of_two_that_an_order_fits_one_gets_it(orders: Orders) -> None:
    order = Order(id="f1", action="fail")
    orders.give(order)
    assert [orders.take(order), orders.take(order)] == [True, False]


def test_an_order_that_was_withdrawn_has_no_effect(storage: Storage, orders: Orders) -> None:
    orders.give(Order(id="f1", action="fail"))
    orders.withdraw("f1")
    storage.put("a", b"1")
    assert not orders.taken("f1")


def test_an_armed_driver_dies_at_its_step(
    storage: Storage, orders: Orders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_STOP_AT", "")
    token = str(tmp_path / "token")
    orders.give(Order(id="f1", action=ARM, step="commit-written", token=token))
    storage.put("a", b"1")
    assert os.environ["HOLDFAST_STOP_AT"] == f"commit-written:1:KILL:{token}"


def test_only_the_checkpoint_of_the_round_is_disturbed(
    storage: Storage, orders: Orders, tmp_path: Path
) -> None:
    orders.give(Order(id="f1", action="fail"))
    urls.open_storage(str(tmp_path / "sink")).put("a", b"1")
    assert not orders.taken("f1")


def test_without_the_variable_storage_is_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(urls.WRAPPER_VARIABLE, raising=False)
    assert (
        type(urls.open_storage(str(tmp_path / CHECKPOINT))).__module__ == "holdfast.storage.local_directory"
    )


def test_a_jump_of_the_clock_is_seen_and_undone(
    orders: Orders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ROUND_VARIABLE, str(tmp_path))
    clock = JumpingClock()
    orders.shift_clock("f1", -3_600_000)
    assert not orders.taken("f1")
    assert abs(clock.now_ms() - SystemClock().now_ms() + 3_600_000) < 5_000
    assert orders.taken("f1")
    orders.shift_clock("f1-back", 0)
    assert abs(clock.now_ms() - SystemClock().now_ms()) < 5_000


def test_the_job_reads_its_clock_by_the_name_that_is_replaced() -> None:
    """`child.live` puts the jumping clock in its place."""
    from holdfast.runtime import job_handle

    assert job_handle.SystemClock is SystemClock
