"""Which node takes a free seat and which gives one away, from what all of them see."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.cluster.node_records import HolderRecord, NodeRecord, OverRecord, PulseRecord, Unfit, WishRecord
from holdfast.cluster.ranking import (
    ClusterSeen,
    SeatSeen,
    code_differences,
    failed_first,
    heir,
    hopeless,
    is_free,
    rank,
    to_give_away,
)

JOBS = ("counts", "sums")


def node(name: str, since_ms: int = 0, standby: str = "cold", jobs: tuple[str, ...] = JOBS) -> NodeRecord:
    return NodeRecord(
        name=name, instance=name, host="h", pid=1, since_ms=since_ms, standby=standby,
        code={job: {} for job in jobs},
    )  # fmt: skip


def held(by: str) -> HolderRecord:
    return HolderRecord(node=by, instance=by, since_ms=0, checkpoint="ck", code={})


def seen(*nodes: NodeRecord, **seats: SeatSeen) -> ClusterSeen:
    return ClusterSeen(nodes={each.name: each for each in nodes}, seats=seats)


def order(cluster: ClusterSeen, job: str) -> list[str]:
    return sorted(cluster.nodes, key=lambda name: rank(cluster, job, name))


def test_the_node_with_fewest_seats_comes_first_then_the_readiest_then_the_eldest() -> None:
    nodes = (node("a", 1), node("b", 3), node("c", 2), node("d", 4, "warm"))
    cluster = seen(*nodes, counts=SeatSeen(), sums=SeatSeen(holder=held("a")))
    assert order(cluster, "counts") == ["d", "c", "b", "a"]


def test_a_handover_goes_to_the_one_it_was_meant_for_and_never_back_first() -> None:
    wish = WishRecord(giver="a", to="c", by="me", at_ms=0)
    nodes = (node("a", 1, "warm"), node("b", 2), node("c", 3))
    assert order(seen(*nodes, counts=SeatSeen(wish=wish)), "counts") == ["c", "b", "a"]
    anyone = WishRecord(giver="a", to="", by="me", at_ms=0)
    assert order(seen(*nodes, counts=SeatSeen(wish=anyone)), "counts") == ["b", "c", "a"]


def test_a_node_that_gave_its_seat_up_comes_last() -> None:
    resigned = PulseRecord(node="a", instance="a", ended="resigned: nothing could be committed")
    nodes = (node("a", 1, "warm"), node("b", 2))
    assert order(seen(*nodes, counts=SeatSeen(pulse=resigned)), "counts") == ["b", "a"]


def test_a_seat_of_a_job_that_is_over_is_not_free() -> None:
    assert is_free(SeatSeen())
    assert not is_free(SeatSeen(holder=held("a")))
    assert not is_free(SeatSeen(over=OverRecord(state="finished", node="a", at_ms=0)))


def test_the_heir_is_never_the_holder_nor_a_node_without_the_job() -> None:
    seat = SeatSeen(holder=held("a"))
    assert heir(seen(node("a"), counts=seat), "counts") is None
    assert heir(seen(node("a"), node("b", jobs=("sums",)), counts=seat), "counts") is None
    assert heir(seen(node("a"), node("b"), counts=seat), "counts") == "b"


def test_a_node_gives_one_seat_away_when_another_holds_two_fewer() -> None:
    both = {"counts": SeatSeen(holder=held("a")), "sums": SeatSeen(holder=held("a"))}
    assert to_give_away(seen(node("a"), **both), "a") is None
    assert to_give_away(seen(node("a"), node("b"), **both), "a") == "sums"
    assert to_give_away(seen(node("a"), node("b"), **both), "b") is None
    one_each = {"counts": SeatSeen(holder=held("a")), "sums": SeatSeen(holder=held("b"))}
    assert to_give_away(seen(node("a"), node("b"), node("c"), **one_each), "a") is None


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=8))
def test_giving_away_comes_to_an_end_with_seats_balanced(holders: list[str]) -> None:
    """Every hand-over makes the spread smaller, whatever it was before; so it ends."""
    jobs = tuple(f"job{number}" for number in range(len(holders)))
    nodes = [node(name, jobs=jobs) for name in "abcd"]
    now = dict(zip(jobs, holders, strict=True))
    for _ in range(len(holders) + 1):
        cluster = seen(*nodes, **{job: SeatSeen(holder=held(by)) for job, by in now.items()})
        given_up = [(name, job) for name in "abcd" if (job := to_give_away(cluster, name)) is not None]
        if not given_up:
            break
        ((_, job),) = given_up
        taker = heir(cluster, job)
        assert taker is not None
        now[job] = taker
    counts = [list(now.values()).count(name) for name in "abcd"]
    assert max(counts) - min(counts) <= 1, counts


def test_differences_in_code_are_told_part_by_part() -> None:
    ours = {"source in": "1", "operator counts": "2", "sink new": "3"}
    theirs = {"source in": "1", "operator counts": "9", "sink old": "3"}
    assert code_differences(ours, theirs) == [
        "operator counts differs", "sink new is only here", "sink old is only there",
    ]  # fmt: skip
    assert code_differences(ours, dict(ours)) == []


def unfit(node: NodeRecord, error: str) -> NodeRecord:
    return replace(node, unfit={"counts": Unfit(error=error, at_ms=0)})


def test_a_node_on_which_the_job_failed_comes_last_and_inherits_nothing() -> None:
    nodes = [unfit(node("a"), "no mount"), node("b"), node("c")]
    wish = WishRecord(giver="b", to="a", by="me", at_ms=0)
    assert order(seen(*nodes, counts=SeatSeen(wish=wish)), "counts")[-1] == "a"
    assert heir(seen(nodes[0], nodes[1], counts=SeatSeen(holder=held("b"))), "counts") is None


def test_of_several_jobs_the_one_is_named_that_failed_first() -> None:
    def ended(state: str, at_ms: int) -> SeatSeen:
        return SeatSeen(over=OverRecord(state=state, node="a", at_ms=at_ms, error=f"it broke at {at_ms}"))

    well = {"main": ended("finished", 1), "middle": ended("stopped", 2), "last": SeatSeen()}
    assert failed_first(seen(**well), [*well, "not seen yet"]) is None
    badly = well | {"last": ended("failed", 4), "main": ended("failed", 3)}
    assert failed_first(seen(**badly), badly) == "main has failed: it broke at 3"
    assert failed_first(seen(**badly), ["middle"]) is None


def test_a_job_is_hopeless_once_it_failed_on_every_node_that_has_it() -> None:
    a, b = unfit(node("a"), "no mount"), unfit(node("b"), "no java")
    told = "it failed on every node: a: no mount; b: no java"
    assert hopeless(seen(a, b, counts=SeatSeen()), "counts") == told
    assert hopeless(seen(a, node("b"), counts=SeatSeen()), "counts") is None
    assert hopeless(seen(a, b, counts=SeatSeen(holder=held("b"))), "counts") is None
    over = OverRecord(state="failed", node="a", at_ms=0)
    assert hopeless(seen(a, b, counts=SeatSeen(over=over)), "counts") is None


def test_a_seat_that_is_being_handed_over_counts_for_the_node_that_it_goes_to() -> None:
    wish = WishRecord(giver="a", to="b", by="me", at_ms=0)
    seats = {
        "counts": SeatSeen(holder=held("a")),
        "means": SeatSeen(holder=held("a")),
        "sums": SeatSeen(holder=held("a"), wish=wish),
    }
    nodes = [node(name, jobs=tuple(seats)) for name in "abc"]
    two, three = seen(*nodes[:2], **seats), seen(*nodes, **seats)
    assert to_give_away(two, "a") is None, "a gave one to b and holds one more than it"
    assert to_give_away(three, "a") == "means"
    assert heir(three, "means") == "c", "b gets one already"
    assert to_give_away(three, "b") is None
