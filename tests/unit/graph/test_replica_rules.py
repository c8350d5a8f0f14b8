"""What a part with active replicas may not have, and what to do instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import holdfast as hf
from holdfast.connectors.memory import MemorySink, MemorySource
from holdfast.errors import DefinitionError
from holdfast.graph.protection import MEMBERS_MAX, survival
from holdfast.graph.validate import check
from holdfast.testing import SqliteLaneSink
from tests.unit.graph.test_parts import ROWS, Judge, Totals


class Repeating(MemorySink):
    """Shows an epoch as often as it is given it."""

    exactly_once = False


class Numbers(hf.OperatorFunction):
    output = "user string"

    def process(self, row: Any, ctx: Any) -> Any:
        yield (row.user,)


def job(protection: Any, declare: Callable[[Any, Any], None]) -> hf.Job:
    """With one part, in which something is declared on two streams."""
    made = hf.Job("job")
    part = made.part("many", protection=protection)
    rows = made.source(MemorySource([], schema=ROWS), uid="in", part=part)
    declare(rows, made.source(MemorySource([], schema=ROWS), uid="rules", part=part))
    return made


def keyed(rows: Any, rules: Any) -> None:
    both = rows.union(rules)
    both.key_by("user").process(Totals(), uid="totals").sink(MemorySink(), uid="out")


def broadcast(rows: Any, rules: Any) -> None:
    judged = rows.key_by("user").connect(rules.broadcast()).process(Judge(), uid="judge")
    judged.sink(MemorySink(), uid="out")


def uncoordinated(rows: Any, rules: Any) -> None:
    own = hf.Uncoordinated(every="1s", storage=hf.FileStateStorage("/nowhere"))
    totals = rows.union(rules).key_by("user").process(Totals(), uid="totals", protection=own)
    totals.sink(MemorySink(), uid="out")


def repeating(rows: Any, rules: Any) -> None:
    rows.union(rules).key_by("user").process(Totals(), uid="totals").sink(Repeating(), uid="out")


class Unshared(SqliteLaneSink):
    shared = False


def unshared(rows: Any, rules: Any) -> None:
    rows.union(rules).key_by("user").process(Totals(), uid="totals").sink(Unshared("out.db"), uid="out")


def unkeyed(rows: Any, rules: Any) -> None:
    rows.union(rules).process(Numbers(), uid="numbers").sink(MemorySink(), uid="out")


def test_members_are_one_more_than_may_be_lost() -> None:
    assert [hf.ActiveReplicas(k=k).members for k in (1, 2)] == [2, 3]
    assert hf.ActiveReplicas() == hf.ActiveReplicas(k=1, vote=False)
    assert all(hf.ActiveReplicas(k=k).mistake is None for k in range(1, MEMBERS_MAX))


@pytest.mark.parametrize("k", [0, -1, MEMBERS_MAX, True, "2", 1.0, None])
def test_a_number_that_is_none_is_refused(k: Any) -> None:
    mistake = hf.ActiveReplicas(k=k).mistake
    assert mistake == (
        f"k={k!r} is not a number of replicas to lose",
        f"give one from 1 to {MEMBERS_MAX - 1}",
    )
    with pytest.raises(DefinitionError, match="is not a number of replicas"):
        check(job(hf.ActiveReplicas(k=k), keyed).graph())


@pytest.mark.parametrize("vote", [1, 0, "no", None])
def test_what_does_not_say_whether_members_vote_is_refused(vote: Any) -> None:
    """Members could not read it back from the term of their set, and each would found its own."""
    mistake = hf.ActiveReplicas(k=2, vote=vote).mistake
    assert mistake == (f"vote={vote!r} does not say whether they vote", "give True or False")


def test_two_cannot_vote() -> None:
    assert hf.ActiveReplicas(k=2, vote=True).mistake is None
    assert hf.ActiveReplicas(k=1, vote=True).mistake == (
        "two members cannot outvote each other", "give k=2 or more, or leave out vote",
    )  # fmt: skip


def test_a_keyed_operator_and_a_sink_that_recognises_repeats_are_what_replicas_can_have() -> None:
    check(job(hf.ActiveReplicas(), keyed).graph())
    assert "none" in survival(hf.ActiveReplicas()).gap


@pytest.mark.parametrize(
    ("declare", "why"),
    [
        (broadcast, "broadcast states of replicas cannot be compared"),
        (uncoordinated, "replicas save keys at different times"),
        (repeating, "this sink would show each several times"),
        (unshared, "the writers of this sink would throw each other out"),
        (unkeyed, "rows without a key come to replicas in different shards"),
    ],
)
def test_what_replicas_cannot_share_is_refused_and_fine_elsewhere(
    declare: Callable[[Any, Any], None], why: str
) -> None:
    with pytest.raises(DefinitionError, match=why):
        check(job(hf.ActiveReplicas(), declare).graph())
    check(job(hf.Rollback(), declare).graph())
