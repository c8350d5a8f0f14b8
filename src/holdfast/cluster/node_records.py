"""What nodes write into ZooKeeper for one another, as JSON.

Always true: a reader passes over fields that it does not know, so nodes of two versions understand each
other. Nothing here decides about data: what a card says is for choosing and for telling.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from holdfast.errors import CorruptionError

CardT = TypeVar("CardT", bound="Card")


class Card(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of all cards."""


class ClusterCard(Card, frozen=True, kw_only=True):
    """`/holdfast/NAME`: the cluster. `id` is written into every checkpoint that it holds."""

    id: str
    since_ms: int


class LagCard(Card, frozen=True, kw_only=True):
    """How far a hot standby's working state is behind the newest commit that it knows of.

    `epoch`: where it stands; `epochs` were committed since, the oldest of them `ms` ago. `problem`: what
    keeps it from following; empty: nothing does.
    """

    epoch: int
    epochs: int = 0
    ms: int = 0
    problem: str = ""


class UnfitCard(Card, frozen=True, kw_only=True):
    """A job failed on a node, for a reason that another node may not have; `commit` was the newest then."""

    error: str
    at_ms: int
    commit: int = 0


class NodeCard(Card, frozen=True, kw_only=True):
    """`nodes/NAME`, ephemeral: a node that is there. `code`: per job, a short name for each part of it.
    `lag`: per job that it follows; written again about once a second while it changes. `unfit`: the jobs that
    it does not try again until another node has brought them further.
    """

    name: str
    instance: str
    host: str
    pid: int
    since_ms: int
    standby: str
    code: dict[str, dict[str, str]]
    lag: dict[str, LagCard] = {}
    unfit: dict[str, UnfitCard] = {}


class HolderCard(Card, frozen=True, kw_only=True):
    """`seats/JOB/holder`, ephemeral: who holds the seat, with which code, and where the checkpoint is."""

    node: str
    instance: str
    since_ms: int
    checkpoint: str
    code: dict[str, str]


class PulseCard(Card, frozen=True, kw_only=True):
    """`seats/JOB/pulse`: the holder's last sign of life. Outlives the holder; `ended` says why it left."""

    node: str
    instance: str
    term: int = 0
    phase: str = ""
    epoch: int = 0
    commit: int = 0
    ended: str = ""


class WishCard(Card, frozen=True, kw_only=True):
    """`seats/JOB/wish`: the holder `giver` is to give the seat up, to `to` if that is not empty."""

    giver: str
    to: str
    by: str
    at_ms: int


class OverCard(Card, frozen=True, kw_only=True):
    """`seats/JOB/over`: the job is not to be run any more. `state`: finished, stopped or failed."""

    state: str
    node: str
    at_ms: int
    error: str = ""


def written(card: Card) -> bytes:
    return msgspec.json.encode(card)


def read(kind: type[CardT], data: bytes, path: str) -> CardT:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as cause:
        raise CorruptionError(
            f"{path} in ZooKeeper holds no {kind.__name__} ({cause}); remove it if nobody else uses the path"
        ) from cause
