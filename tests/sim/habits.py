"""How the leaders of one simulation are set up."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Habits:
    """How the leaders of one simulation are set up."""

    retain: int = 2
    manifest_every: int = 2
    sweep_every: int = 1
    lives: int = 2
    epochs: int = 6
    barrier_chance: float = 0.7
    """Of a commit after an epoch."""
    rewind_chance: float = 0.0
    recode_chance: float = 0.0
    snapshot_chance: float = 0.3
    rescale_chance: float = 0.0
    """Of another number of shards in a life."""
    unreported_chance: float = 0.0
    """Of an epoch whose newest event time does not become known."""
    close_chance: float = 0.5
    """Of a life that closes what is open when the input ends."""
    rows: int = 12
    """About how many rows come between two lives."""
    slice_rows: tuple[int, int] = (1, 3)
    """At least and at most how many rows of the source an epoch reads."""
    lose_chance: float = 0.0
    """Of the newest commit record being gone when a life begins. For a leader that is alone."""
    sink_knows: bool = True
    """Whether the sink can say how far it was published; if not, it only recognises an epoch it shows."""
    away_chance: float = 0.0
    """Of the sink not being there for a while, when it is to show an epoch."""
    refuse_chance: float = 0.0
    """Of the sink refusing what it is given for a while. It is tried again when a person or a life comes."""
    stop_chance: float = 0.0
    """Of a lead that is told to stop at its end: it does not wait for the sink without end."""
    rest: int = 0
    """At most for how many steps a machine rests between two lives."""
    nap_chance: float = 0.0
    """Of a long sleep of the leader of a part that reads channels, before a turn."""
    lose_last_chance: float = 0.0
    """Of the newest commit record of a part that no other reads being gone when a life begins."""
    damage_chance: float = 0.0
    """Of the newest plan, if it was never committed, being damaged when a life of a member begins."""
    spoil_chance: float = 0.0
    """Of a file in a channel being damaged, before a turn of the part that sent it. Now and then all that
    are damaged are put back."""
    news_chance: float = 0.0
    """Of a new barrier of the whole job, before a turn of a member."""
    forget_chance: float = 0.0
    """Of a member's working state being lost, before an epoch."""
    without_chance: float = 0.0
    """Of a life of a part in which its job does not have the channels that leave it: what is in them is given
    up."""
