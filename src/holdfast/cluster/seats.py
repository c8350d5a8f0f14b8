"""Seats: one per job, each held by at most one node at a time.

A seat is taken by creating its ephemeral `holder`; ZooKeeper lets one win. While it is held, the holder
writes its `pulse`, which stays when the holder is gone and tells its successor when it was last heard of.
When the session is lost: the seat is free as soon as ZooKeeper has ended the session; the old holder must not
write its pulse any more. When ZooKeeper has lost its data: all seats are free, and `prepare` creates them.
Never here: which node should take a seat (see ranking), what holding means (see seat_lease).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.cluster.node_records import (
    HolderRecord,
    OverRecord,
    PulseRecord,
    RecordT,
    WishRecord,
    checked_name,
    read,
    written,
)
from holdfast.cluster.ranking import SeatSeen, part_of
from holdfast.cluster.zookeeper import Watch, ZooKeeper
from holdfast.errors import RetryableError


@dataclass(frozen=True)
class Seat:
    """The seat of one job, at its path in ZooKeeper."""

    zookeeper: ZooKeeper
    path: str
    job: str

    def prepare(self) -> None:
        """See to it that the seat is known."""
        checked_name("job", part_of(self.job))
        self.zookeeper.create(self.path, b"")

    def look(self, watch: Watch | None = None) -> SeatSeen:
        """The seat as it is; `watch` is called once, when it is taken, freed, wished for or over."""
        names = self.zookeeper.children(self.path, watch) or []
        holder, _ = self._part(HolderRecord, "holder", names)
        wish, _ = self._part(WishRecord, "wish", names)
        over, _ = self._part(OverRecord, "over", names)
        pulse, pulse_ms = self._part(PulseRecord, "pulse", names)
        return SeatSeen(holder=holder, wish=wish, over=over, pulse=pulse, pulse_ms=pulse_ms)

    def _part(
        self, kind: type[RecordT], name: str, names: list[str]
    ) -> tuple[RecordT, int] | tuple[None, None]:
        """A record of the seat, and when it was written by ZooKeeper's clock."""
        path = f"{self.path}/{name}"
        here = self.zookeeper.read(path) if name in names else None
        return (read(kind, here.data, path), here.changed_ms) if here else (None, None)

    def take(self, record: HolderRecord) -> int | None:
        """Try to win a free seat: when it was won, by ZooKeeper's clock, or None: another node was first."""
        path = f"{self.path}/holder"
        created = self.zookeeper.create(path, written(record), ephemeral=True)
        here = self.zookeeper.read(path)
        if here is None or here.owner != self.zookeeper.session:
            return None
        # Ours, and not just created: the answer to an earlier try was lost on the way.
        if not created and read(HolderRecord, here.data, path).instance != record.instance:
            return None
        return here.created_ms

    def release(self) -> None:
        """Give up a seat of ours; one that is not ours is left alone."""
        path = f"{self.path}/holder"
        here = self.zookeeper.read(path)
        if here is not None and here.owner == self.zookeeper.session:
            self.zookeeper.delete(path)

    def beat(self, pulse: PulseRecord, done: Callable[[], object]) -> None:
        """Give a sign of life, without waiting; `done` is called when ZooKeeper has it."""
        self.zookeeper.write_soon(f"{self.path}/pulse", written(pulse), done)

    def set_pulse(self, pulse: PulseRecord) -> None:
        """Give a sign of life, the first one too."""
        path, data = f"{self.path}/pulse", written(pulse)
        if not self.zookeeper.write(path, data) and not self.zookeeper.create(path, data):
            self.zookeeper.write(path, data)

    def wish(self, wish: WishRecord) -> None:
        """Ask the holder to give the seat up. RetryableError: it has been asked already."""
        if not self.zookeeper.create(f"{self.path}/wish", written(wish)):
            raise RetryableError(f"the seat of {self.job!r} is being handed over already; try again later")

    def unwish(self) -> None:
        self.zookeeper.delete(f"{self.path}/wish")

    def end(self, over: OverRecord) -> None:
        """Say that the job is not to be run any more."""
        self.zookeeper.create(f"{self.path}/over", written(over))

    def reopen(self) -> None:
        """Take that back."""
        self.zookeeper.delete(f"{self.path}/over")
