"""What becomes of the lists of an operator's shards when their number changes. Pure.

All items are first brought together: those that an earlier union gave to every shard once, then what each
added of its own, in the order of the shards. *Split* deals them out one by one: item i goes to shard i modulo
the number of shards. *Union* gives all of them to every shard.

Always true: the same lists give the same lists; a split keeps every item exactly once, whatever the numbers
of shards were; a union after a union does not multiply.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

Redistribute = Literal["split", "union"]
REDISTRIBUTE: tuple[Redistribute, ...] = get_args(Redistribute)


@dataclass(frozen=True, slots=True)
class ShardList:
    """A shard's list. Its first `inherited` items came by union: other shards have the same ones.

    A shard inherits the whole of a union or, once it has replaced or cleared its list, nothing.
    """

    items: Sequence[Any] = ()
    inherited: int = 0


def redistributed(lists: Sequence[ShardList], shards: int, by: Redistribute) -> list[ShardList]:
    """The lists of `shards` shards, made of those of `len(lists)`, in the order of the shards."""
    everything = gathered(lists)
    if by == "union":
        return [ShardList(everything, inherited=len(everything))] * shards
    return [ShardList(everything[shard::shards]) for shard in range(shards)]


def gathered(lists: Sequence[ShardList]) -> list[Any]:
    """All items: what came by union once, if any shard still has it, then what each shard added."""
    common: Sequence[Any] = max((each.items[: each.inherited] for each in lists), key=len, default=())
    return [*common, *(item for each in lists for item in each.items[each.inherited :])]
