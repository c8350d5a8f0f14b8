"""The engine's threads, simulated: those of its commits and of its sinks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from holdfast.runtime.epoch import committer, outages, sink_queues
from tests.sim.scheduler import Executor, Scheduler, SinkThread

LIMIT_EPOCHS = 2
"""How many epochs may wait for a sink."""
STOP_STEPS = 20
"""How long a run that ends waits for its sinks."""


@contextmanager
def simulated_threads(scheduler: Callable[[], Scheduler], steps_per_second: int = 1_000) -> Iterator[None]:
    """Give the engine simulated threads, and waits that are short by the steps of a simulation."""
    step = 1 / steps_per_second
    with ExitStack() as patches:
        for module, name, instead in (
            (committer, "ThreadPoolExecutor", lambda *given, **named: Executor(scheduler(), *given, **named)),
            (sink_queues, "SinkThread", lambda name: SinkThread(scheduler(), steps_per_second, name)),
            (sink_queues, "LIMIT_EPOCHS", LIMIT_EPOCHS),
            (sink_queues, "WAIT_SECONDS", 10 * step),
            (outages, "FIRST_SECONDS", 4 * step),
            (outages, "MOST_SECONDS", 16 * step),
            (outages, "LOOK_SECONDS", 4 * step),
        ):
            patches.enter_context(patch.object(module, name, instead))
        yield
