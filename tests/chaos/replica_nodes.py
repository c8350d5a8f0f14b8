"""A part that a set of replicas runs, on real nodes: who its members are, and the gaps in what it shows.

Always true: what is measured was seen from outside: the files of the sink, and the records in ZooKeeper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from holdfast.cluster.replica_seats import Standing, replica_seats
from tests.chaos.nodes import NodeProcess
from tests.chaos.part_nodes import PartsCluster, seat_of
from tests.chaos.parts_checker import judge_alone

PART = "numbered"
APP = """
from pathlib import Path
import holdfast as hf
from holdfast.chaos.inside.child import tightened
from tests.chaos.apps import Place, Shape
from tests.chaos.parts_app import Number, Renumber, alone, steady
source = steady(Shape(keys={keys}), rows_per_second={rate})
job = alone(Place(Path({root!r})), source, hf.{protection}, {number}())
often = tightened()
often.__enter__()
"""


@dataclass(frozen=True)
class Gaps:
    """Seconds between epochs that follow one another in the sink."""

    usual: float
    """The median."""
    largest: float

    def __str__(self) -> str:
        ratio = self.largest / self.usual
        return f"median {self.usual:.2f} s, largest {self.largest:.2f} s ({ratio:.1f} times)"


@dataclass
class ReplicasCluster(PartsCluster):
    """Part `numbered` alone, run by `members` nodes at once. Use as a context."""

    protection: str = "ActiveReplicas(k=1)"
    parts: tuple[str, ...] = (PART,)
    seats: int = 2

    def app(self, number: str = "Number") -> str:
        return APP.format(
            keys=self.shape.keys, rate=self.rate, root=str(self.root), number=number,
            protection=self.protection,
        )  # fmt: skip

    def members(self) -> dict[int, NodeProcess]:
        """Seat -> the node that holds it and runs there."""
        return members_of(self)

    def wait_members(self, count: int) -> dict[int, NodeProcess]:
        """Wait until so many members run."""
        self.wait(lambda: len(self.members()) >= count, f"{count} members that run")
        self.favour_members()
        return self.members()

    def favour_members(self) -> None:
        """Give the members that run all they want, and nodes that start what they leave: the nodes share one
        machine here, and elsewhere the start of one takes nothing from another."""
        members = self.members().values()
        for node in self.nodes:
            if node.running:
                node.give_way(0 if node in members else 10)

    def wait_replaced(self, victim: NodeProcess) -> NodeProcess:
        """Wait until the set is whole without this node; gives the one that came."""
        others = [node for node in self.members().values() if node is not victim]
        self.wait(
            lambda: len(self.members()) == self.seats and victim not in self.members().values(),
            f"another node in the place of {victim.name}",
        )
        (came,) = (node for node in self.members().values() if node not in others)
        return came

    def shown_at(self) -> list[float]:
        """When each epoch was written for the sink, by the clock of its file system."""
        files = self.place.sink("numbers").glob("*.parquet")
        return sorted(file.stat().st_mtime for file in files)

    def gaps(self, since: float = 0.0, until: float = float("inf")) -> Gaps:
        """Of the epochs that were shown in this time."""
        shown = [at for at in self.shown_at() if since <= at <= until]
        gaps = [after - before for before, after in pairwise(shown)]
        return Gaps(median(gaps), max(gaps))

    def finish(self, *nodes: NodeProcess) -> None:
        """Wait until the nodes have ended, in good order, and judge what they left behind."""
        self.wait(lambda: not any(node.running for node in nodes), "every node to end")
        assert [node.code for node in nodes] == [0] * len(nodes), self.told()
        wrong = judge_alone(self.place, self.shape)
        assert not wrong, f"{wrong}\n{self.told()}"
        assert not [node for node in self.nodes if node.told("DIVERGENCE")], self.told()


def members_of(cluster: PartsCluster, part: str = PART) -> dict[int, NodeProcess]:
    """Seat of a replicated part -> the node that holds it and runs there, as nodes count it: it is warm."""
    there = {node.name: node for node in cluster.nodes if node.running}
    seen, found = cluster.timeline.seen, {}
    for seat, (name, standing) in enumerate(replica_seats(seen, seat_of(part)).seats.items(), 1):
        holder = seen.seats[name].holder
        if standing is Standing.RUNNING and holder is not None and holder.node in there:
            found[seat] = there[holder.node]
    return found


def largest_after(shown: Sequence[float], moments: Sequence[float], span: float = 0.0) -> list[float]:
    """The largest gap that touches each of these stretches of time; without a span, the one that each of
    these moments is in."""
    gaps = list(pairwise(shown))
    return [
        max((after - before for before, after in gaps if after >= at and before <= at + span), default=0.0)
        for at in moments
    ]
