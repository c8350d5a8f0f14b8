"""How a part with replicas is protected, from what every node can see."""

from __future__ import annotations

import pytest

from holdfast.cluster.node_records import HolderRecord, NodeRecord, PulseRecord
from holdfast.cluster.ranking import ClusterSeen, SeatSeen, seat_name
from holdfast.cluster.replica_seats import (
    SILENT_BEATS,
    Standing,
    ends_survived,
    replica_seats,
    replicated_parts,
    what_lacks,
)

NOW_MS = 60_000
"""When the seat of another part was heard of."""


def seat(
    holder: str = "", phase: str = "running", instance: str = "", heard_ms: int = NOW_MS, beat_ms: int = 500
) -> SeatSeen:
    if not holder:
        return SeatSeen()
    pulse = PulseRecord(
        node=holder, instance=instance or holder, term=1, phase=phase, epoch=1, commit=1, beat_ms=beat_ms
    )
    record = HolderRecord(node=holder, instance=holder, since_ms=0, checkpoint="c", code={})
    return SeatSeen(holder=record, pulse=pulse, pulse_ms=heard_ms)


SILENT = seat("b", heard_ms=NOW_MS - 3_000)


def seen(*seats: SeatSeen, spare: int = 0) -> ClusterSeen:
    named = {seat_name("shop.scored", number): each for number, each in enumerate(seats, 1)}
    nodes = {name: node(name) for name in "abcde"[: len(seats) + spare]}
    return ClusterSeen(nodes=nodes, seats={"shop.main": seat("z"), **named})


def node(name: str) -> NodeRecord:
    code: dict[str, dict[str, str]] = {seat_name("shop.scored", number): {} for number in (1, 2, 3)}
    return NodeRecord(
        name=name, instance=name, host="h", pid=1, since_ms=0, standby="cold", code={**code, "shop.main": {}}
    )


@pytest.mark.parametrize(
    ("seats", "votes", "told"),
    [
        ((seat("a"), seat("b")), False, "2 of 2 replicas run; it survives the end of 1 more node"),
        (
            (seat("a"), seat("b"), seat()),
            False,
            "2 of 3 replicas run; NO NODE HAS shop.scored~3: start 1 more; it survives the end of 1 more "
            "node",
        ),
        (
            (seat("a"), seat("b", "restoring")),
            False,
            "1 of 2 replicas run, 1 is joining; it survives the end of 0 more nodes",
        ),
        (
            (seat("a"), seat("b", "joining"), seat("c", "joining")),
            False,
            "1 of 3 replicas run, 2 are joining; it survives the end of 0 more nodes",
        ),
        (
            (seat("a", "joining"), seat("b", "joining")),
            False,
            "0 of 2 replicas run, 2 are joining; nothing is committed until 1 runs",
        ),
        (
            (seat("a"), SILENT),
            False,
            "1 of 2 replicas run; NOTHING IS HEARD OF shop.scored~2; it survives the end of 0 more nodes",
        ),
        (
            (seat("a"), seat("b"), seat()),
            True,
            "2 of 3 replicas run; NO NODE HAS shop.scored~3: start 1 more; it survives the end of 0 more "
            "nodes",
        ),
        (
            (seat(), seat("b"), seat()),
            True,
            "1 of 3 replicas run; NO NODE HAS shop.scored, shop.scored~3: start 2 more; nothing is committed "
            "until 2 run",
        ),
    ],
)
def test_what_a_part_survives_is_told(seats: tuple[SeatSeen, ...], votes: bool, told: str) -> None:
    assert str(replica_seats(seen(*seats), "shop.scored~2", votes=votes)) == told


def test_the_last_sign_of_life_of_the_holder_before_is_none_of_this_one() -> None:
    assert one(seat("a", instance="before", heard_ms=0)) is Standing.JOINING


def one(first: SeatSeen) -> Standing:
    return replica_seats(seen(first), "shop.scored").seats["shop.scored"]


def test_a_member_of_which_nothing_is_heard_does_not_count() -> None:
    """A frozen node holds its seat until its session ends, and its last sign of life says that it runs."""
    assert one(seat("a", heard_ms=NOW_MS - SILENT_BEATS * 500)) is Standing.RUNNING
    assert one(seat("a", heard_ms=NOW_MS - SILENT_BEATS * 500 - 1)) is Standing.SILENT


def test_a_member_that_does_not_say_how_often_it_is_heard_counts_while_it_holds_its_seat() -> None:
    assert one(seat("a", heard_ms=0, beat_ms=0)) is Standing.RUNNING


@pytest.mark.parametrize(
    ("seats", "survives"),
    [
        ((seat("a"), seat("b")), 1),
        ((seat("a"), seat("b", "joining")), 0),
        ((seat("a"), SILENT), 0),
        ((seat("a"), seat()), 0),
        ((seat("a"), seat("b"), seat("c", "joining")), 1),
    ],
)
def test_a_seat_survives_what_its_set_does(seats: tuple[SeatSeen, ...], survives: int) -> None:
    """However many nodes are there: only a member that runs goes on at once."""
    there = seen(*seats)
    assert replica_seats(there, "shop.scored").survives == survives
    for number in range(1, len(seats) + 1):
        assert ends_survived(there, seat_name("shop.scored", number)) == survives


def test_a_part_without_replicas_survives_as_many_ends_as_there_are_nodes_to_go_on() -> None:
    assert ends_survived(seen(seat("a"), seat("b", "joining")), "shop.main") == 1


@pytest.mark.parametrize(
    ("seats", "votes", "lacks"),
    [
        ((seat("a"), seat("b")), False, ""),
        (
            (seat("a"), seat("b", "joining")),
            False,
            "LACKS MEMBERS: 0 of its members may end unnoticed, instead of 1; wait until 2 run",
        ),
        (
            (seat("a"), SILENT),
            False,
            "LACKS MEMBERS: 0 of its members may end unnoticed, instead of 1; wait until 2 run",
        ),
        (
            (seat("a"),),
            False,
            "LACKS NODES: it survives the end of 0, and is to survive 1; start 1 more",
        ),
        (
            (seat("a"), seat("b")),
            True,
            "LACKS NODES: it survives the end of 0, and is to survive 1; start 1 more",
        ),
    ],
)
def test_what_a_part_lacks_is_told_with_what_helps(
    seats: tuple[SeatSeen, ...], votes: bool, lacks: str
) -> None:
    assert what_lacks(seen(*seats), "shop.scored", 1, votes=votes) == lacks
    assert what_lacks(seen(*seats), "shop.scored", 0, votes=votes) == ""


def test_nodes_that_stand_by_count_where_there_are_not_so_many_members() -> None:
    """One of two members ends unnoticed; after the other, a third node goes on."""
    both = seat("a"), seat("b")
    lacks = "LACKS NODES: it survives the end of 1, and is to survive 2; start 1 more"
    assert what_lacks(seen(*both), "shop.scored", 2) == lacks
    assert what_lacks(seen(*both, spare=1), "shop.scored", 2) == ""


def test_a_part_with_one_seat_has_no_replicas() -> None:
    assert replicated_parts(seen(seat("a"), seat())) == ["shop.scored"]
