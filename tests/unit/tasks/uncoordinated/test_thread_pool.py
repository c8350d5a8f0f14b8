"""Pools with a limit on everything."""

from __future__ import annotations

import os
import threading
import time
from functools import partial

from holdfast.tasks.uncoordinated.thread_pool import BoundedPool

DEADLINE = 20.0


def until(condition: object) -> None:
    assert callable(condition)
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, "it does not come about"
        time.sleep(0.002)


def test_what_finds_no_room_is_refused_at_once_and_never_run_not_even_by_the_caller() -> None:
    """S4's pool for storing ran what it had no room for in the thread that processes events."""
    pool = BoundedPool("t", threads=2, keep_alive_seconds=60, outstanding=3)
    go, ran = threading.Event(), list[int]()

    def work(number: int) -> None:
        assert go.wait(DEADLINE)
        ran.append(threading.get_ident())

    assert [pool.submit(partial(work, n)) for n in range(6)] == [True] * 3 + [False] * 3
    assert pool.room == 0
    go.set()
    until(lambda: pool.outstanding == 0)
    assert len(ran) == 3
    assert threading.get_ident() not in ran


def test_there_are_never_more_threads_than_allowed_and_idle_ones_go() -> None:
    pool = BoundedPool("t", threads=3, keep_alive_seconds=0.05, outstanding=100)
    most = 0
    done = threading.Semaphore(0)
    for _ in range(50):
        assert pool.submit(done.release)
        most = max(most, pool.threads)
    for _ in range(50):
        assert done.acquire(timeout=DEADLINE)
    assert 1 <= most <= 3
    until(lambda: pool.threads == 0)
    assert pool.submit(done.release), "and come back"
    assert done.acquire(timeout=DEADLINE)


def test_a_request_that_waits_can_be_taken_back_and_one_that_runs_cannot() -> None:
    pool = BoundedPool("t", threads=1, keep_alive_seconds=60, outstanding=10)
    go, began, ran = threading.Event(), threading.Event(), list[str]()

    def first() -> None:
        began.set()
        assert go.wait(DEADLINE)

    def second() -> None:
        ran.append("second")

    pool.submit(first)
    pool.submit(second)
    assert began.wait(DEADLINE)
    assert not pool.cancel(first)
    assert pool.cancel(second)
    go.set()
    until(lambda: pool.outstanding == 0)
    assert ran == []


def test_only_threads_that_step_back_run_at_a_lower_priority() -> None:
    """The rows wait for what is fetched, and never for what is saved."""
    found: dict[bool, int] = {}
    for steps_back in (True, False):
        pool = BoundedPool("t", threads=1, keep_alive_seconds=60, outstanding=1, steps_back=steps_back)

        def look(steps_back: bool = steps_back) -> None:
            found[steps_back] = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

        pool.submit(look)
        until(lambda each=steps_back: each in found)
    assert found[True] > found[False] == os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
