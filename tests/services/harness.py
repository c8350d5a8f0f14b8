"""Nodes whose job needs no Spark, and clocks that are wrong.

Always true: waiting is for a condition, with a deadline; whatever was started is ended with the test.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError

import holdfast as hf
from holdfast.checkpoint.chain.checkpoint import open_checkpoint
from holdfast.checkpoint.chain.terms import claim, newest_term
from holdfast.checkpoint.store.records import CommitRecord
from holdfast.clock import SystemClock
from holdfast.cluster.zookeeper import ZooKeeperSettings
from holdfast.errors import FencedOut
from holdfast.nodes.node import Node
from holdfast.nodes.registration import NodeSettings
from holdfast.runtime.control.commit_permit import WatchedStorage
from holdfast.runtime.control.run_flags import Wishes
from holdfast.runtime.driver import NOTHING, Prepared
from holdfast.runtime.job import Job
from holdfast.runtime.progress import Listener, Message, Progress
from holdfast.runtime.settings import RunOptions
from holdfast.storage.urls import open_storage

DEADLINE_SECONDS = 30.0
SESSION_SECONDS = 2.0


def wait_until(
    condition: Callable[[], Any],
    what: str,
    story: Callable[[], str] = str,
    seconds: float = DEADLINE_SECONDS,
) -> None:
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, f"waited in vain for: {what}\n{story()}"
        time.sleep(0.02)


class Skewed(SystemClock):
    """A wall clock that is wrong by some hours; time passes as it does for all others."""

    def __init__(self, hours: float) -> None:
        self._ms = int(hours * 3_600_000)

    def now_ms(self) -> int:
        return super().now_ms() + self._ms


class SteadyJob(Job):
    """Commits one record after another to a real chain, as a leader does, with no Spark and no rows."""

    def start_as(
        self,
        wishes: Wishes,
        checkpoint: str | Path,
        spark: object,
        on_progress: Listener | None,
        on_message: Message,
        options: RunOptions,
        prepared: Prepared = NOTHING,
    ) -> Any:
        return SteadyRun(self.name, wishes, str(checkpoint), on_progress or (lambda progress: None), options)


class SteadyRun:
    """The handle of such a run. One that is not `obedient` looks neither at its permit nor at terms."""

    obedient = True

    def __init__(
        self, name: str, wishes: Wishes, checkpoint: str, tell: Listener, options: RunOptions
    ) -> None:
        self._wishes, self._tell = wishes, tell
        self._args = (name, checkpoint, options)
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def wait(self, timeout: float | None = None) -> None:
        self._thread.join(timeout)
        if not self._thread.is_alive() and self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            self._lead(*self._args)
        except BaseException as failure:
            self._failure = failure

    def _lead(self, name: str, checkpoint: str, options: RunOptions) -> None:
        clock, permit = SystemClock(), self._wishes.permit
        storage = WatchedStorage(open_storage(checkpoint), permit)
        run = f"{threading.get_ident()}-{time.monotonic_ns()}"
        opened = open_checkpoint(storage, name, 8, clock, identity=run)
        term = claim(storage, run, "host", 1, clock.now_ms())
        self._tell(Progress(job=name, term=term, phase="restoring"))
        view = opened.chain.load()
        self._tell(Progress(job=name, term=term, phase="running", commit=view.number))
        while not self._wishes.stopping.is_set():
            if self.obedient:
                newest = newest_term(storage)
                if newest is not None and newest.term > term:
                    raise FencedOut(term, newest.term, "seen between two commits")
                permit.await_commit()
            epoch = view.last_epoch + 1
            record = CommitRecord(
                term=term, run=run, first_epoch=epoch, last_epoch=epoch, attempts={str(epoch): 1},
                clock_ms=clock.now_ms(), parallelism=1, fingerprint="", positions={}, notes={}, deltas=(),
                snapshots=(), staged=(), rows=1, published_through={}, operators=None, lists=(),
            )  # fmt: skip
            view = opened.chain.commit(view, record).view
            permit.satisfied()
            self._tell(Progress(job=name, term=term, phase="running", commit=view.number))
            if options.get("until") == "exhausted" and view.number >= 20:
                return
            self._wishes.stopping.wait(0.05)
        permit.refuse_if_revoked()


def steady(name: str = "counts", version: int = 1) -> SteadyJob:
    """A job; `version` is part of the code of its transform."""
    job = SteadyJob(name)
    source = job.source(hf.MemorySource([("a", 1)], schema="word string, n long"), uid="words")
    source.transform(lambda frame: frame.limit(version)).sink(hf.FileSink("out", format="json"), uid="out")
    return job


class Running:
    """A node in a thread of this process."""

    def __init__(self, checkpoint: Path | str, hosts: str, name: str, jobs: list[Any], **more: Any) -> None:
        clock = more.pop("clock", None)
        options: RunOptions = {"until": more.pop("until", "stopped"), **more.pop("options", {})}
        auth = {key: more.pop(key) for key in ("user", "password") if key in more}
        zookeeper = ZooKeeperSettings(hosts=hosts, session_seconds=SESSION_SECONDS, **auth)
        settings = NodeSettings(cluster=more.pop("cluster", "test"), zookeeper=zookeeper, name=name, **more)
        self.name, self.said, self.failure, self.place = name, list[str](), None, str(checkpoint)
        self.node = Node(jobs, str(checkpoint), settings, options, self._say, lambda progress: None, clock)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    @property
    def alive(self) -> bool:
        return self.thread.is_alive()

    def told(self, *parts: str) -> bool:
        return any(all(part in text for part in parts) for text in list(self.said))

    def story(self) -> str:
        ended = [] if self.failure is None else [f"ended: {self.failure!r}"]
        return "\n".join(f"{self.name}: {text}" for text in [*self.said, *ended])

    def leave(self) -> None:
        self.node.leave()
        self.thread.join(DEADLINE_SECONDS)
        assert not self.alive, self.story()

    def _say(self, text: str) -> None:
        self.said.append(f"{time.monotonic():.2f} {text}")

    def _run(self) -> None:
        try:
            self.node.run()
        except BaseException as failure:
            self.failure: BaseException | None = failure


@contextmanager
def nodes_of(checkpoint: Path | str, hosts: str) -> Iterator[Callable[..., Running]]:
    """Starts nodes, and ends them with the test."""
    started: list[Running] = []

    def start(name: str, *jobs: Job, at: str | None = None, **more: Any) -> Running:
        started.append(Running(checkpoint, at or hosts, name, list(jobs) or [steady()], **more))
        return started[-1]

    try:
        yield start
    finally:
        for running in started:
            running.node.leave()
        for running in started:
            running.thread.join(DEADLINE_SECONDS)


def expire(running: Running) -> None:
    """End its session behind its back, as the server does after the time-out."""
    zookeeper = running.node._zookeeper
    session, client_id = zookeeper.session, zookeeper._client.client_id

    def ended() -> bool:
        """A twin takes the session over and closes it, unless the node is quicker to take it back."""
        twin = KazooClient(
            hosts=running.node._settings.zookeeper.hosts, client_id=client_id, timeout=SESSION_SECONDS
        )
        with suppress(KazooTimeoutError):
            twin.start(timeout=1.0)
        twin.stop()
        twin.close()
        return zookeeper.session not in (0, session)

    wait_until(ended, f"the session of {running.name} to end", running.story)
