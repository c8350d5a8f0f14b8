"""Which faults there are, and the schedule that a seed gives. Pure.

Always true: the same seed and kinds give the same faults in the same order with the same details. When each
of them strikes is counted in commits of the job, so a slower machine suffers the same faults later; what the
processes are at when a signal reaches them is up to them, and differs from run to run.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from holdfast.steps import Step

WORKER_STEPS = (
    Step.TASK_STATE_READY,
    Step.TASK_COMPUTED,
    Step.TASK_FILES_WRITTEN,
    Step.TASK_APPLIED,
    Step.SNAPSHOT_WRITTEN,
)
"""Reached in Python workers; all others in the driver."""

DRIVER_STEPS = tuple(step for step in Step if step not in WORKER_STEPS)

RECOVERY_STEPS = (Step.TERM_CLAIMED, Step.RECOVERY_READ)
"""Reached once in each life, while it begins."""


class Kind(StrEnum):
    """What can be done to a job."""

    KILL_DRIVER = "kill-driver"
    """SIGKILL of the driver, whatever it is at."""
    KILL_DRIVER_AT_STEP = "kill-driver-at-step"
    """SIGKILL of the driver at a named step of the protocol, or of its next life while that recovers."""
    KILL_WORKER = "kill-worker"
    """SIGKILL of one of Spark's Python workers, whatever it is at."""
    KILL_WORKER_AT_STEP = "kill-worker-at-step"
    """SIGKILL of a Python worker at a named step of a task."""
    KILL_EXECUTOR = "kill-executor"
    """SIGKILL of an executor's JVM. On a cluster only."""
    PAUSE_DRIVER = "pause-driver"
    """SIGSTOP of the driver for a while, then SIGCONT."""
    TAKE_OVER = "take-over"
    """SIGSTOP of the driver; another one takes over and commits; SIGCONT of the first."""
    STORAGE_ERROR = "storage-error"
    """A call of checkpoint storage fails, in the driver or in a task."""
    STORAGE_LATENCY = "storage-latency"
    """A call of checkpoint storage takes long."""
    STORAGE_TIMEOUT = "storage-timeout"
    """A call of checkpoint storage is not answered: whether it was done is not known."""
    CLOCK_JUMP = "clock-jump"
    """The driver's wall clock is hours ahead or behind for a while."""
    RESTART = "restart"
    """SIGTERM, and a new start."""
    RESCALE = "rescale"
    """SIGTERM, and a new start with another parallelism."""
    DAMAGE_FILE = "damage-file"
    """SIGKILL of the driver; one bit of a stored delta or snapshot is turned, working state is removed."""


ENDS_DRIVER = frozenset(
    {
        Kind.KILL_DRIVER,
        Kind.KILL_DRIVER_AT_STEP,
        Kind.TAKE_OVER,
        Kind.RESTART,
        Kind.RESCALE,
        Kind.DAMAGE_FILE,
    }
)
"""After these another process leads."""

CLUSTER_ONLY = frozenset({Kind.KILL_EXECUTOR})
ON_REQUEST = frozenset({Kind.DAMAGE_FILE})
"""Not among the usual: damage that is repeated can leave nothing to go back to, and is then refused."""

COPIES = 3
"""How often a round of the schedule has each kind that leaves the driver alive, against once for others."""

STORAGE_CALLS: dict[str, tuple[tuple[str, str], ...]] = {
    "driver": (
        ("put_new", "commits/*"),
        ("put_new", "plans/*"),
        ("put*", "data/*"),
        ("get", "*"),
        ("list", "plans*"),
        ("*", "terms*"),
    ),
    "task": (("put*", "*"), ("*", "*")),
}
"""Operation and name, as in a shell, of calls that the driver and the tasks make."""
CLOCK_JUMP_MAX_MS = 12 * 3_600_000
"""No clock is off by more."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One planned fault. Which of the details count depends on the kind."""

    number: int
    kind: Kind
    commits: int
    """How many commits after the fault before it."""
    delay: float
    """And how many seconds after that."""
    seconds: float = 0.0
    step: Step | None = None
    where: str = "driver"
    operation: str = "*"
    name: str = "*"
    answer_lost: bool = True
    """Of a call without an answer: whether it was done."""
    shift_ms: int = 0
    parallelism: int = 2
    draw: int = 0
    """Chooses among what is there when it strikes: workers, executors, files."""

    def __str__(self) -> str:
        details = {
            Kind.KILL_DRIVER_AT_STEP: str(self.step),
            Kind.PAUSE_DRIVER: f"{self.seconds:.1f} s",
            Kind.STORAGE_ERROR: self._call,
            Kind.STORAGE_LATENCY: f"{self._call} by {self.seconds:.1f} s",
            Kind.STORAGE_TIMEOUT: f"{self._call}, {'done' if self.answer_lost else 'not done'}",
            Kind.CLOCK_JUMP: f"{self.shift_ms / 3_600_000:+.1f} h",
            Kind.RESCALE: f"to {self.parallelism}",
        }
        return f"{self.kind} {details.get(self.kind, '')}".strip()

    @property
    def _call(self) -> str:
        return f"{self.operation} {self.name} ({self.where})"


def usual_kinds(*, cluster: bool) -> tuple[Kind, ...]:
    """All kinds that a job can suffer again and again."""
    return tuple(kind for kind in Kind if kind not in ON_REQUEST and (cluster or kind not in CLUSTER_ONLY))


def schedule(seed: int, kinds: Sequence[Kind], steps: Sequence[Step] = DRIVER_STEPS) -> Iterator[Fault]:
    """Faults without end: every kind in each turn, in an order by chance, the cheap ones more often.

    `steps`: those at which the driver may be killed.
    """
    assert kinds
    assert steps
    chance = random.Random(seed)
    number = 0
    while True:
        deck = [kind for kind in kinds for _ in range(1 if kind in ENDS_DRIVER else COPIES)]
        chance.shuffle(deck)
        for kind in deck:
            number += 1
            yield _drawn(chance, number, kind, steps)


def worker_steps(seed: int) -> Iterator[Step]:
    """For each life, the step at which its workers can be killed."""
    chance = random.Random(f"{seed} workers")
    while True:
        yield from chance.sample(WORKER_STEPS, len(WORKER_STEPS))


def _drawn(chance: random.Random, number: int, kind: Kind, steps: Sequence[Step]) -> Fault:
    """Draws the same amount of chance for each kind, so that kinds do not move one another's details."""
    where = chance.choice(("driver", "driver", "task"))
    operation, name = chance.choice(STORAGE_CALLS[where])
    return Fault(
        number=number,
        kind=kind,
        commits=chance.choice((1, 1, 2, 3)),
        delay=chance.uniform(0.0, 0.3),
        seconds=chance.uniform(0.3, 2.5),
        step=chance.choice(steps),
        where=where,
        operation=operation,
        name=name,
        answer_lost=chance.random() < 0.5,
        shift_ms=chance.choice((-1, 1)) * chance.randrange(60_000, CLOCK_JUMP_MAX_MS),
        parallelism=chance.choice((1, 2, 3, 4)),
        draw=chance.randrange(1 << 30),
    )
