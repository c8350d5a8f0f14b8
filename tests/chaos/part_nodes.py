"""The parts of one job on real nodes, and a record of who held which seat and how far each part was.

Always true: what is recorded was seen from outside, in ZooKeeper and in storage, by one thread that disturbs
nothing.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from holdfast.admin.cluster import visit
from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.log.incidents import read_failovers
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.log_records import FailoverRecord
from holdfast.clock import SystemClock
from holdfast.cluster.ranking import ClusterSeen, seat_name
from holdfast.cluster.zookeeper import ZooKeeperSettings
from holdfast.errors import HoldfastError
from holdfast.ids import CommitNumber
from tests.chaos.apps import Shape
from tests.chaos.nodes import CLUSTER, Cluster, NodeProcess
from tests.chaos.parts_checker import PARTS, events_read, gather, judge, storage_of

JOB = "diamond"
APP = """
from pathlib import Path
import holdfast as hf
from tests.chaos.apps import Place, Shape
from tests.chaos.parts_app import Number, Renumber, diamond, steady
source = steady(Shape(keys={keys}), rows_per_second={rate})
job = diamond(Place(Path({root!r})), source, number={number}(), protection=hf.{protection},
    joined_by=hf.{joined_by})
"""
NEW_APP = "new_app.py"
"""As app.py, with other code in part `numbered`."""
LOOK_SECONDS = 0.2
TIMELINES = Path(os.environ["HOLDFAST_TIMELINES"]) if "HOLDFAST_TIMELINES" in os.environ else None
"""Where timelines are kept, if not with the rest of what a test leaves behind."""
SMALL_SPARK = (
    "--master", "local[1]", "--conf", "spark.driver.memory=512m",
    # Lives are short: time spent on making code fast is time lost.
    "--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
)  # fmt: skip


def seat_of(part: str, seat: int = 1) -> str:
    return seat_name(f"{JOB}.{part}", seat)


@dataclass
class PartsCluster(Cluster):
    """The job in three parts, its nodes and their ZooKeeper. Use as a context.

    `rate`: events per second, without end. `protection`: of part `numbered`, as a user writes it, and
    `joined_by`: of part `joined`. `parts`: those that are looked at.
    """

    shape: Shape = field(default_factory=lambda: Shape(rows=400, keys=20))
    epoch_interval: str = "500ms"
    spark: tuple[str, ...] = SMALL_SPARK
    rate: float = 20.0
    protection: str = "Rollback()"
    joined_by: str = "Rollback()"
    parts: tuple[str, ...] = PARTS

    def __enter__(self) -> Self:
        super().__enter__()
        (self.root / NEW_APP).write_text(self.app("Renumber"))
        self.spark = (*self.spark, "--conf", f"spark.local.dir={self.root / 'spark'}")
        self.timeline = Timeline(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.timeline.close()
        self.timeline.save(TIMELINES / f"{self.root.name}.txt" if TIMELINES else self.root / "timeline.txt")
        super().__exit__(kind, error, trace)

    def app(self, number: str = "Number") -> str:
        return APP.format(
            keys=self.shape.keys, rate=self.rate, root=str(self.root), number=number,
            protection=self.protection, joined_by=self.joined_by,
        )  # fmt: skip

    def start_cold(self, *given: str, app: str = "app.py", more: Sequence[str] = ()) -> list[NodeProcess]:
        """Start nodes that have nothing ready; returns when all of them are there."""
        started = [self.start(name, "cold", app=app, more=more) for name in given]
        for node in started:
            self.wait_joined(node)
        return started

    def number_of(self, part: str) -> int:
        """The newest commit of a part. A look at names alone, which costs the nodes nothing."""
        directory = self.place.checkpoint / names.PARTS / part / names.COMMITS
        found = directory.iterdir() if directory.exists() else ()
        return max((int(path.name) for path in found if path.name.isdigit()), default=0)

    def numbers(self) -> dict[str, int]:
        return {part: self.number_of(part) for part in self.parts}

    def term_of(self, part: str) -> int:
        """Of the newest commit of a part; 0: there is none."""
        number = self.number_of(part)
        return History(storage_of(self.place, part)).record(CommitNumber(number)).term if number else 0

    def failovers_of(self, part: str) -> list[FailoverRecord]:
        return read_failovers(storage_of(self.place, part))

    def wait_progress_of(self, *parts: str, commits: int = 1) -> None:
        """Wait for that many commits more of each of these parts than there are now."""
        before = self.numbers()
        self.wait(
            lambda: all(self.number_of(part) >= before[part] + commits for part in parts),
            f"{commits} commits of {', '.join(parts)} after {before}",
        )

    def holders(self) -> dict[str, NodeProcess]:
        """Which node holds the seat of each part, where one does that has not ended."""
        seen, there = self.timeline.seen, {node.name: node for node in self.nodes if node.running}
        held = {part: seen.seats.get(seat_of(part)) for part in self.parts}
        return {
            part: there[seat.holder.node]
            for part, seat in held.items()
            if seat is not None and seat.holder is not None and seat.holder.node in there
        }

    def holder(self, part: str) -> NodeProcess:
        self.wait(lambda: part in self.holders(), f"a holder of {part}")
        return self.holders()[part]

    def held_by(self, node: NodeProcess) -> list[str]:
        return [part for part, holder in self.holders().items() if holder is node]

    def idle(self) -> list[NodeProcess]:
        """The nodes that are in the cluster and hold no seat."""
        held = self.holders().values()
        there = self.timeline.seen.nodes
        return [node for node in self.nodes if node.running and node.name in there and node not in held]

    def wait_spread(self) -> None:
        """Wait until every part has been committed by its holder, each on a node of its own."""

        def is_spread() -> bool:
            holders = {part: node.name for part, node in self.holders().items()}
            committed = {part: each.node for part in self.parts for each in self.failovers_of(part)}
            return holders == committed and len(set(holders.values())) == len(self.parts)

        self.wait(is_spread, "each part on a node of its own")

    def drain(self) -> None:
        """Have the first part read what is due by now and end. The others end by themselves when they have
        read what it leaves."""
        first = self.parts[0]
        url = str(self.place.checkpoint / "parts" / first)
        # While a seat changes hands there is no leader to ask.
        self.wait(lambda: self.run("stop", "--drain", "--checkpoint", url).returncode == 0, f"{first} to end")

    def finish(self, *nodes: NodeProcess) -> None:
        """Wait until the nodes have ended, in good order, and judge what they left behind."""
        self.judge(*nodes, new=False)

    def judge(self, *nodes: NodeProcess, new: bool) -> None:
        """`new`: whether rows of the newer code are to be there."""
        self.wait(lambda: not any(node.running for node in nodes), "every node to end")
        assert [node.code for node in nodes] == [0] * len(nodes), self.told()
        evidence, events = gather(self.place), events_read(self.place)
        wrong = judge(evidence, self.shape, events)
        assert not wrong, f"{wrong}\n{self.told()}"
        assert (evidence.renumbered > 0) == new, evidence.renumbered
        for part in self.parts:
            terms = self.terms(part)
            assert terms == sorted(terms), f"{part}: an old leader committed after a new one\n{self.told()}"

    def terms(self, part: str) -> list[int]:
        """Of each retained commit of a part, oldest first."""
        history = History(storage_of(self.place, part))
        newest = history.load()
        return [history.record(n).term for n in range(max(newest.retained_from, 1), newest.number + 1)]


@dataclass(frozen=True)
class Sample:
    """What was seen at one time: of each part, the holder of its seat, if any, and its newest commit."""

    seconds: float
    holders: Mapping[str, str]
    numbers: Mapping[str, int]


class Timeline:
    """Looks a few times a second, from its making to `close`."""

    def __init__(self, cluster: PartsCluster) -> None:
        self._cluster, self._began = cluster, time.monotonic()
        self.seen = ClusterSeen(nodes={}, seats={})
        self.samples: list[Sample] = []
        self.notes: list[tuple[float, str]] = []
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def now(self) -> float:
        return time.monotonic() - self._began

    def note(self, what: str) -> None:
        """Something was done to the cluster."""
        self.notes.append((self.now(), what))

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def _watch(self) -> None:
        settings = ZooKeeperSettings(hosts=self._cluster.server.hosts)
        while not self._closing.wait(LOOK_SECONDS):
            # No cluster before the first node is there.
            with suppress(HoldfastError), visit(settings, CLUSTER, SystemClock()) as visited:
                while not self._closing.wait(LOOK_SECONDS):
                    self.seen = visited.look()
                    held = {part: self.seen.seats.get(seat_of(part)) for part in self._cluster.parts}
                    holders = {part: seat.holder.node for part, seat in held.items() if seat and seat.holder}
                    self.samples.append(Sample(self.now(), holders, self._cluster.numbers()))

    def commits_until(
        self, since: float, before: Mapping[str, int], hurt: str
    ) -> tuple[float, dict[str, int]]:
        """How long after `since`, when the newest commits were `before`, a part committed again; and how
        often each other part did until then."""
        again = next(each for each in self.samples if each.numbers[hurt] > before[hurt])
        others = {part: again.numbers[part] - before[part] for part in before if part != hurt}
        return again.seconds - since, others

    def save(self, path: Path) -> None:
        """One line for each second: the holder and the commits of each part, and what was done."""
        parts = self._cluster.parts
        lines, last = [], dict.fromkeys(parts, 0)
        for second in range(int(self.now()) + 1):
            within = [each for each in self.samples if second <= each.seconds < second + 1]
            done = ", ".join(what for at, what in self.notes if second <= at < second + 1)
            if not within:
                lines.append(f"{second:5} s  {'nothing seen':63} {done}")
                continue
            numbers = within[-1].numbers
            told = [
                f"{part} {within[-1].holders.get(part, '-'):>9} {numbers[part] - last[part]:+}"
                for part in parts
            ]
            last = dict(numbers)
            lines.append(f"{second:5} s  {'   '.join(told):63} {done}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n")
