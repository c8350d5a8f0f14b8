"""What is done to nodes that run the parts of a job: each fault begins, is waited for, and ends.

Always true: how long a fault lasts is given by what others have done meanwhile, not by time.
"""

from __future__ import annotations

from tests.chaos.nodes import NodeProcess
from tests.chaos.part_nodes import PartsCluster, seat_of
from tests.chaos.parts_checker import PARTS


class Trouble:
    """One fault of one node. `part`: one that it holds; None: it stands by."""

    def __init__(self, cluster: PartsCluster, victim: NodeProcess, part: str | None, number: int) -> None:
        self.cluster, self.victim, self.part, self.number = cluster, victim, part, number
        self.hurt = cluster.held_by(victim)
        self._terms = {part: cluster.term_of(part) for part in self.hurt}
        self.began = self.ended = 0.0
        self.before: dict[str, int] = {}
        """The newest commits when it had begun."""

    def __str__(self) -> str:
        held = ", ".join(self.hurt) or "standing by"
        return f"{type(self).__name__} of {self.victim.name} ({held})"

    def suffer(self) -> None:
        """From its beginning to its end."""
        timeline = self.cluster.timeline
        timeline.note(str(self))
        self.begin()
        self.began, self.before = timeline.now(), self.cluster.numbers()
        self.cluster.wait(self.has_lasted, f"{self} to have lasted long enough")
        self.end()
        self.ended = timeline.now()
        if self.part is not None:
            self.cluster.wait(self._committed_again, f"{self.part} to commit after {self}")

    def _committed_again(self) -> bool:
        """Whether the timeline shows it."""
        samples, part = self.cluster.timeline.samples, self.part
        return part is not None and bool(samples) and samples[-1].numbers[part] > self.before[part]

    def begin(self) -> None:
        raise NotImplementedError

    def has_lasted(self) -> bool:
        """Others have taken over and committed; or nothing was held, and all go on."""
        return self.replaced() if self.hurt else self.others_go_on()

    def end(self) -> None:
        """Nothing is left to do."""

    def replaced(self) -> bool:
        return all(self.cluster.term_of(part) > term for part, term in self._terms.items())

    def others_go_on(self) -> bool:
        """Whether every part that was not hurt has committed since."""
        now = self.cluster.numbers()
        return all(now[part] > self.before[part] for part in PARTS if part not in self.hurt)

    def outage(self) -> tuple[float, dict[str, int]] | None:
        """How long the part did not commit, and how often the others did meanwhile; None: it never ceased."""
        if self.part is None:
            return None
        return self.cluster.timeline.commits_until(self.began, self.before, self.part)


class Kill(Trouble):
    """SIGKILL; another node is started at once."""

    def begin(self) -> None:
        self.victim.kill()
        self.cluster.start(f"n{self.number}", "cold")

    def end(self) -> None:
        self.victim.close()


class Freeze(Trouble):
    """SIGSTOP for longer than the session."""

    def begin(self) -> None:
        self.victim.pause_all()

    def end(self) -> None:
        self.victim.resume_all()


class Nap(Freeze):
    """SIGSTOP until another part has committed: mostly shorter than the session."""

    def has_lasted(self) -> bool:
        return self.replaced() if len(self.hurt) == len(PARTS) else self.others_go_on()


class Cut(Trouble):
    """Nothing passes between the node and ZooKeeper, for longer than the session."""

    def begin(self) -> None:
        self.victim.cables.zookeeper.cut()

    def end(self) -> None:
        self.victim.cables.zookeeper.restore()

    def outage(self) -> tuple[float, dict[str, int]] | None:
        return None  # it goes on for a while


class Blip(Cut):
    """The same until the node pauses, which is shorter than the session."""

    def begin(self) -> None:
        self._paused = self.victim.times_told("PAUSED")
        super().begin()

    def has_lasted(self) -> bool:
        if not self.hurt:
            return self.others_go_on()
        return self.victim.times_told("PAUSED") > self._paused or self.replaced()


class HandOver(Trouble):
    """`holdfast handover` of the part. One that is under way already is waited for."""

    def begin(self) -> None:
        assert self.part is not None, "what stands by has nothing to hand over"
        command = ("handover", "--job", seat_of(self.part))
        self.cluster.wait(
            lambda: self.cluster.command(*command).returncode == 0, f"{self.part} to be handed over"
        )

    def has_lasted(self) -> bool:
        assert self.part is not None
        return self.cluster.term_of(self.part) > self._terms[self.part]

    def outage(self) -> tuple[float, dict[str, int]] | None:
        return None  # it is over when the command answers


TROUBLES = (Kill, Freeze, Nap, Cut, Blip, HandOver)
