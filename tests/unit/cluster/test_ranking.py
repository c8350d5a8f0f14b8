"""Which node takes a free seat and which gives one away, from what all of them see."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
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
    is_over,
    part_of,
    rank,
    seat_name,
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


@settings(deadline=None)
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


def test_a_part_that_failed_in_one_seat_and_goes_on_in_another_has_not_failed() -> None:
    """Else the other parts of the job would be ended because of it."""
    failed = SeatSeen(over=OverRecord(state="failed", node="a", at_ms=1, error="it broke"))
    finished = SeatSeen(over=OverRecord(state="finished", node="b", at_ms=2))
    for other in (SeatSeen(), SeatSeen(holder=held("b")), finished):
        cluster = seen(**{"main": failed, "main~2": other})
        assert failed_first(cluster, ["main"]) is None
        assert is_over(cluster, "main") is (other is finished)
    cluster = seen(**{"main": failed, "main~2": failed})
    assert failed_first(cluster, ["main"]) == "main has failed: it broke"


def test_a_job_is_hopeless_once_it_failed_on_every_node_that_has_it() -> None:
    a, b = unfit(node("a"), "no mount"), unfit(node("b"), "no java")
    told = "it failed on every node: a: no mount; b: no java"
    assert hopeless(seen(a, b, counts=SeatSeen()), "counts") == told
    assert hopeless(seen(a, node("b"), counts=SeatSeen()), "counts") is None
    assert hopeless(seen(a, b, counts=SeatSeen(holder=held("b"))), "counts") is None
    over = OverRecord(state="failed", node="a", at_ms=0)
    assert hopeless(seen(a, b, counts=SeatSeen(over=over)), "counts") is None


def test_a_part_with_replicas_is_hopeless_once_it_failed_on_every_node_in_whichever_seat() -> None:
    seats = ("main", "main~2")
    a = replace(node("a", jobs=seats), unfit={"main": Unfit(error="no mount", at_ms=0, commit=0)})
    b = replace(node("b", jobs=seats), unfit={"main~2": Unfit(error="no java", at_ms=0, commit=0)})
    free = dict.fromkeys(seats, SeatSeen())
    for seat in seats:
        assert hopeless(seen(a, b, **free), seat) == "it failed on every node: a: no mount; b: no java"
        assert hopeless(seen(a, node("b", jobs=seats), **free), seat) is None
        assert order(seen(a, node("b", jobs=seats), **free), seat) == ["b", "a"]


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


def replicas(members: int, job: str = "numbered") -> tuple[str, ...]:
    return tuple(seat_name(job, seat) for seat in range(1, members + 1))


def test_the_seats_of_a_part_have_names_that_tell_the_part() -> None:
    assert replicas(3) == ("numbered", "numbered~2", "numbered~3")
    assert {part_of(name) for name in replicas(3)} == {"numbered"}


def test_a_node_that_holds_a_replica_inherits_no_other() -> None:
    one, two = replicas(2)
    nodes = [node(name, jobs=(one, two)) for name in "abc"]
    seats = {one: SeatSeen(holder=held("a")), two: SeatSeen(holder=held("b"))}
    assert heir(seen(*nodes, **seats), one) == "c"
    assert heir(seen(*nodes[:2], **seats), one) is None, "each of the two holds one"


def test_a_node_that_is_to_hold_a_replica_inherits_no_other() -> None:
    one, two = replicas(2)
    nodes = [node(name, jobs=(one, two)) for name in "abc"]
    wish = WishRecord(giver="b", to="c", by="me", at_ms=0)
    seats = {one: SeatSeen(holder=held("a")), two: SeatSeen(holder=held("b"), wish=wish)}
    assert heir(seen(*nodes, **seats), one) == "b", "b gives its own away, and c gets that"


def test_nodes_that_hold_a_replica_do_not_keep_those_waiting_that_hold_none() -> None:
    one, two = replicas(2)
    nodes = [node("a", 1, "hot", (one, two)), node("b", 2, jobs=(one, two)), node("c", 3, jobs=(one, two))]
    cluster = seen(*nodes, **{one: SeatSeen(holder=held("a")), two: SeatSeen()})
    assert (rank(cluster, two, "b"), rank(cluster, two, "c")) == (0, 1)


def test_a_replica_is_given_away_only_to_a_node_without_one() -> None:
    one, two = replicas(2)
    seats = {"counts": SeatSeen(holder=held("a")), two: SeatSeen(holder=held("a"))}
    nodes = [node(name, jobs=(one, two, "counts", "sums")) for name in "ab"]
    assert to_give_away(seen(*nodes, **seats), "a") == two
    seats |= {one: SeatSeen(holder=held("b")), "sums": SeatSeen(holder=held("a"))}
    assert to_give_away(seen(*nodes, **seats), "a") == "sums", "numbered~2 would join numbered on b"


@settings(deadline=None)
@given(
    st.integers(2, 5),
    st.integers(1, 5),
    st.lists(st.sampled_from(["take", "die", "come", "balance", "hand over"]), max_size=30),
    st.randoms(use_true_random=False),
)
def test_two_replicas_are_never_on_one_node(
    members: int, size: int, steps: list[str], chance: Random
) -> None:
    """However nodes come and go, seats are taken, balanced and handed over."""
    jobs = (*replicas(members), "sums")
    names = [f"n{number}" for number in range(size)]
    living, now = list(names), dict.fromkeys(jobs, "")
    for step in steps:
        cluster = seen(
            *(node(name, jobs=jobs) for name in living),
            **{job: SeatSeen(holder=held(by) if by else None) for job, by in now.items()},
        )
        if step == "come":
            living.append(f"n{len(names)}")
            names.append(living[-1])
        elif living:
            now = _after(step, cluster, now, living, chance)
        for name in living:
            assert sum(now[job] == name for job in replicas(members)) <= 1


def _after(
    step: str, cluster: ClusterSeen, now: dict[str, str], living: list[str], chance: Random
) -> dict[str, str]:
    job, who = chance.choice(list(now)), chance.choice(living)
    if step == "die":
        living.remove(who)
        return {each: "" if by == who else by for each, by in now.items()}
    if step == "take":
        # As SeatKeeper does: the first in rank among those that hold none of the same replicas.
        takes = not now[job] and not cluster.holds_fellow(who, job) and rank(cluster, job, who) == 0
        return {**now, job: who} if takes else now
    given_up = to_give_away(cluster, who) if step == "balance" else job
    taker = heir(cluster, given_up) if given_up and now[given_up] else None
    return {**now, given_up: taker} if given_up and taker else now


def test_seats_stay_free_where_there_are_fewer_nodes_than_replicas() -> None:
    jobs = replicas(3)
    nodes = [node(name, jobs=jobs) for name in "ab"]
    seats = {
        jobs[0]: SeatSeen(holder=held("a")), jobs[1]: SeatSeen(holder=held("b")), jobs[2]: SeatSeen(),
    }  # fmt: skip
    cluster = seen(*nodes, **seats)
    assert heir(cluster, jobs[2]) is None
    assert hopeless(cluster, jobs[2]) is None, "it has not failed: a third node would take it"
    assert all(cluster.holds_fellow(name, jobs[2]) for name in "ab")
