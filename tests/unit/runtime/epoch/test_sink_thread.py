"""A thread of a sink's own: in order, started when needed, and left behind when it does not come back."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from holdfast.runtime.epoch.sink_thread import LeftBehind, SinkThread

AT_MOST = 60.0


def test_what_is_given_is_done_in_order_by_one_thread() -> None:
    thread, done = SinkThread("t"), list[tuple[int, int]]()

    def do(number: int) -> None:
        done.append((number, threading.get_ident()))

    for number in range(50):
        thread.submit(partial(do, number))
    assert thread.await_done(AT_MOST)
    assert [number for number, _ in done] == list(range(50))
    assert len({ident for _, ident in done}) == 1
    assert thread.end(AT_MOST, lambda: None)


def test_one_that_was_never_given_anything_ends_at_once() -> None:
    assert SinkThread("t").end(0.0, lambda: None)


def test_what_fails_is_told_by_its_future_and_the_thread_goes_on() -> None:
    def fail() -> None:
        raise ValueError("no")

    thread = SinkThread("t")
    failed, after = thread.submit(fail), thread.submit(lambda: None)
    with pytest.raises(ValueError, match="no"):
        failed.result(AT_MOST)
    after.result(AT_MOST)
    assert thread.end(AT_MOST, lambda: None)


def test_one_that_does_not_come_back_is_left_behind_and_lets_go_when_it_does() -> None:
    thread, go, closed, done = SinkThread("t"), threading.Event(), threading.Event(), list[int]()
    began = threading.Event()

    def hang() -> None:
        began.set()
        go.wait(AT_MOST)

    stuck, never = thread.submit(hang), thread.submit(lambda: done.append(1))
    assert began.wait(AT_MOST)
    assert not thread.await_done(0.01)
    assert not thread.end(0.01, closed.set)
    for future in (stuck, never, thread.submit(lambda: done.append(2))):
        with pytest.raises(LeftBehind):
            future.result(0)
    assert not closed.is_set()
    go.set()
    assert closed.wait(AT_MOST)
    assert done == []


def test_it_keeps_no_process_alive() -> None:
    thread = SinkThread("t")
    found = []
    thread.submit(lambda: found.append(threading.current_thread().daemon))
    assert thread.await_done(AT_MOST)
    assert found == [True]
    thread.end(AT_MOST, lambda: None)
