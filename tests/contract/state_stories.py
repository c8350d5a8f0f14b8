"""Stories that other processes play on a shard's working state: `python -m tests.contract.state_stories`.

Real processes, started anew and not forked: RocksDB does not survive a fork, and Spark's workers are not
forked from one that uses it. They say what they did on standard output, a line each, and wait for lines on
the input.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from unittest.mock import patch

from holdfast.state.contract import (
    EMPTY_VERSION,
    DeltaStep,
    Entries,
    ShardState,
    StaleWorkingState,
    StateTarget,
    Version,
)
from holdfast.state.local import directories
from holdfast.state.local.backends import open_state

KEYS = [b"\x00\x00" + number.to_bytes(4, "big") for number in range(400)]
ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 60.0


def v(epoch: int, result: str = "a") -> Version:
    return Version(epoch, 1, result)


def counted(epoch: int) -> Entries:
    """The changes of an epoch: every key gets its number, so a mixture of two epochs shows at once."""
    return [(key, b"%d" % epoch) for key in KEYS]


def target(epoch: int, committed: int = 0) -> StateTarget:
    deltas = tuple(
        DeltaStep(v(e), v(e - 1) if e > 1 else EMPTY_VERSION, lambda e=e: counted(e))  # type: ignore[misc]
        for e in range(1, epoch + 1)
    )
    return StateTarget(v(epoch) if epoch else EMPTY_VERSION, 0, 1, (), deltas, committed)


def opened(backend: str, directory: Path, wanted: StateTarget) -> ShardState:
    return open_state(directory, "job", wanted, backend=backend)


def lock_timeout(seconds: float) -> AbstractContextManager[object]:
    """How long this process waits for another's lock."""
    return patch.object(directories, "LOCK_TIMEOUT_S", seconds)


def values(state: ShardState) -> set[bytes | None]:
    return set(state.get_many(KEYS))


def expected(epoch: int) -> set[bytes | None]:
    return {b"%d" % epoch if epoch else None}


def apply_for_ever(backend: str, directory: Path, first: str) -> None:
    epoch = int(first)
    state = opened(backend, directory, target(epoch, committed=max(0, epoch - 3)))
    say(str(epoch))
    while True:
        epoch += 1
        state.apply(state.version, v(epoch), counted(epoch), max(0, epoch - 3))
        say(str(epoch))


def be_a_twin(backend: str, directory: Path, name: str, epochs: str) -> None:
    """Run the same epochs as another process, starting over whenever that one disturbed us."""
    for epoch in range(1, int(epochs) + 1):
        while True:
            try:
                state = opened(backend, directory, target(epoch - 1, committed=max(0, epoch - 2)))
                try:
                    assert values(state) == expected(epoch - 1), f"{name} at epoch {epoch - 1}"
                    state.apply(state.version, v(epoch, name), counted(epoch), max(0, epoch - 2))
                finally:
                    state.close()
                break
            except StaleWorkingState:
                continue
    say("done")


def be_a_zombie(backend: str, directory: Path) -> None:
    """Hold the state at epoch 1, fall asleep before epoch 2, and go on when woken up."""
    state = opened(backend, directory, target(1))
    say("asleep")
    sys.stdin.readline()
    try:
        state.apply(v(1), v(2, "zombie"), [(KEYS[0], b"zombie")], 0)
        say("applied")
    except StaleWorkingState:
        say("refused")
    state.close()
    say("closed")
    sys.stdin.readline()


def open_once(backend: str, directory: Path, epoch: str) -> None:
    state = opened(backend, directory, target(int(epoch), committed=int(epoch)))
    found = values(state)
    state.close()
    say(" ".join(sorted(str(value) for value in found)))


def say(line: str) -> None:
    print(line, flush=True)


class Player:
    """A process that plays a story."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._lines: Queue[str | None] = Queue()
        Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def heard(self) -> str:
        """The next line that it says."""
        try:
            line = self._lines.get(timeout=DEADLINE_S)
        except Empty:
            raise AssertionError(f"it said nothing for {DEADLINE_S} s") from None
        assert line is not None, "it ended without a word"
        return line

    def rest_heard(self) -> list[str]:
        """All that it still said, when it has ended."""
        lines = []
        while (line := self._lines.get(timeout=DEADLINE_S)) is not None:
            lines.append(line)
        return lines

    def nudge(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go on\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE_S)


@contextmanager
def playing(story: str, backend: str, directory: Path, *arguments: str) -> Iterator[Player]:
    """Start a process that plays a story; killed at the end, whatever state it is in."""
    command = [sys.executable, "-m", "tests.contract.state_stories", story, backend, str(directory)]
    process = subprocess.Popen(
        [*command, *arguments],
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PATH": ""},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    player = Player(process)
    try:
        yield player
    finally:
        player.kill()


STORIES = {story.__name__: story for story in (apply_for_ever, be_a_twin, be_a_zombie, open_once)}

if __name__ == "__main__":
    name, backend, directory, *arguments = sys.argv[1:]
    with lock_timeout(DEADLINE_S):
        STORIES[name](backend, Path(directory), *arguments)  # type: ignore[operator]
