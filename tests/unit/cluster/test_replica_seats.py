"""How a part with replicas is protected, from what every node can see."""

from __future__ import annotations

import pytest

from holdfast.cluster.node_records import HolderRecord, PulseRecord
from holdfast.cluster.ranking import ClusterSeen, SeatSeen, seat_name
from holdfast.cluster.replica_seats import replica_seats, replicated_parts


def seat(holder: str = "", phase: str = "running", instance: str = "") -> SeatSeen:
    if not holder:
        return SeatSeen()
    pulse = PulseRecord(node=holder, instance=instance or holder, term=1, phase=phase, epoch=1, commit=1)
    record = HolderRecord(node=holder, instance=holder, since_ms=0, checkpoint="c", code={})
    return SeatSeen(holder=record, pulse=pulse)


def seen(*seats: SeatSeen) -> ClusterSeen:
    named = {seat_name("shop.scored", number): each for number, each in enumerate(seats, 1)}
    return ClusterSeen(nodes={}, seats={"shop.main": seat("z"), **named})


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
            "1 of 2 replicas run, 1 start; it survives the end of 0 more nodes",
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
    assert replica_seats(seen(seat("a", instance="before")), "shop.scored").starting == ("shop.scored",)


def test_a_part_with_one_seat_has_no_replicas() -> None:
    assert replicated_parts(seen(seat("a"), seat())) == ["shop.scored"]
