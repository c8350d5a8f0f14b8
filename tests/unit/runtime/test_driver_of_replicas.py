"""What the driver of a member of a set of replicas does about another number of shards; leading is played."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as replace_record

from holdfast.checkpoint.chain.checkpoint import open_checkpoint
from holdfast.checkpoint.chain.replica_sets import runs_no_more
from holdfast.checkpoint.chain.terms import ending_of, newest_term
from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.envelope import seal
from holdfast.checkpoint.store.records import MemberRecord
from holdfast.clock import SystemClock
from holdfast.errors import CorruptionError, DefinitionError, RetryableError, StorageError
from holdfast.graph.protection import ActiveReplicas
from holdfast.runtime import driver as module
from holdfast.runtime.epoch_loop import Ending
from holdfast.storage.checksums import checksum
from tests.unit.checkpoint import kept
from tests.unit.runtime.test_driver import Played, Run, commit, epoch, stop

Act = Callable[[Played], Ending]


def rescale(led: Played) -> Ending:
    return Ending.RESCALING


class Member(Run):
    """A member that leads as these acts say; `led` tells with which shards, and `terms` under which term."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, acts: list[Act]) -> None:
        super().__init__(tmp_path, monkeypatch, acts)
        monkeypatch.setattr(module, "fingerprint", lambda graph: "f")
        monkeypatch.setattr(module, "EpochLoop", self._played)
        self._acts, self.led, self.terms = acts, list[int](), list[int]()
        replicas = ActiveReplicas(k=1)
        self.driver.settings = dataclasses.replace(self.driver.settings, protection=replicas, seat=1)

    def _played(self, context: Any, view: CheckpointView, shards: int) -> Played:
        self.led.append(shards)
        self.terms.append(context.term)
        return Played(self._acts.pop(0), view)


def test_a_wish_for_other_shards_is_fulfilled_by_a_new_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = Member(tmp_path, monkeypatch, [rescale, stop])
    member.wishes.parallelism = 3
    member.run()
    assert (member.led, member.terms) == ([1, 3], [1, 2])
    leader = newest_term(member.storage)
    assert leader is not None
    assert (leader.parallelism, member.wishes.parallelism) == (3, None)


def test_a_member_that_begins_again_keeps_the_shards_of_its_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(led: Played) -> Ending:
        member.wishes.parallelism = 3
        raise RetryableError("something is away; try again")

    member = Member(tmp_path, monkeypatch, [fail, rescale, stop])
    member.run()
    assert (member.led, member.terms) == ([1, 1, 3], [1, 1, 2])


def test_a_set_that_could_not_be_founded_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    join = module.join

    def unreachable(*given: Any, **more: Any) -> Any:
        monkeypatch.setattr(module, "join", join)
        raise StorageError("storage is away; try again")

    def rescale_in_vain(led: Played) -> Ending:
        monkeypatch.setattr(module, "join", unreachable)
        member.wishes.parallelism = 3
        return Ending.RESCALING

    member = Member(tmp_path, monkeypatch, [rescale_in_vain, rescale, stop])
    member.run()
    assert (member.led, member.terms) == ([1, 1, 3], [1, 1, 2])


def test_a_set_whose_term_was_lost_is_not_taken_for_the_one_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The former set could commit nothing after the lost one: its members would end at every try."""
    Member(tmp_path, monkeypatch, [stop]).run()
    member = Member(tmp_path, monkeypatch, [stop])
    member.storage.delete([names.ended(1)])
    commit(member, replace_record(epoch(1), term=3, run="the lost set"))
    member.run()
    assert member.terms == [4]


def test_damage_is_seen_through_though_the_others_go_on_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others have the state at hand and commit on: one that joins would begin again and again."""
    damaged = kept.snapshot(1)

    def miss(led: Played) -> Ending:
        commit(member, replace_record(epoch(led.view.last_epoch + 1), run=led.view.run))
        raise CorruptionError(f"{damaged.object} is damaged; restore it from a copy")

    acts = [miss, miss, stop]
    member = Member(tmp_path, monkeypatch, acts)
    open_checkpoint(member.storage, "job", 128, SystemClock(), identity="id")
    extent = kept.delta(1).extent
    member.storage.put(extent.object, b"")
    delta = replace_record(kept.delta(1), extent=replace_record(extent, length=0, checksum=checksum(b"")))
    commit(member, replace_record(epoch(1), deltas=(delta,), snapshots=(damaged,)))
    member.run()
    assert not acts
    found = [text for text in member.said if "came first" in text or damaged.object in text]
    assert [text.partition(":")[0] for text in found] == [
        "commit 2 of term 1 came first; going on from it", "DAMAGE", "DAMAGE",
    ]  # fmt: skip
    assert any(text.startswith("RESTORE: commit 3 is restored from an older") for text in member.said)


def test_a_member_that_is_told_to_leave_says_so_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave(led: Played) -> Ending:
        assert not runs_no_more(member.storage)
        member.wishes.leaving.set()
        return Ending.STOPPED

    member = Member(tmp_path, monkeypatch, [leave])
    member.run()
    assert ending_of(member.storage, 1) is None, "the others may go on"
    assert runs_no_more(member.storage), "there are none"


def test_a_member_that_fails_says_that_it_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(led: Played) -> Ending:
        raise DefinitionError("something is wrong with the job; correct it")

    member = Member(tmp_path, monkeypatch, [fail])
    with pytest.raises(DefinitionError):
        member.run()
    assert runs_no_more(member.storage)


def killed(led: Played) -> Ending:
    raise KeyboardInterrupt


def test_a_set_that_was_killed_while_it_drained_is_not_what_the_next_start_goes_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a job without replicas: that a drain was asked for is known to those alone who ran then."""

    def draining(led: Played) -> Ending:
        assert first.driver._replica is not None
        first.driver._replica.joined.drain(first.storage)
        return killed(led)

    first = Member(tmp_path, monkeypatch, [draining])
    monkeypatch.setattr(module.Replica, "leave", lambda replica: None)
    with pytest.raises(KeyboardInterrupt):
        first.run()
    fellow = MemberRecord(term=1, seat=2, process="other", host="there", pid=1, joined_ms=0)
    first.storage.put(names.member(1, 2, 1), seal("member", fellow))
    for runs, term in ((True, 1), (False, 2)):
        next_one = Member(tmp_path, monkeypatch, [killed])
        next_one.wishes.member_runs = lambda member, runs=runs: runs
        with pytest.raises(KeyboardInterrupt):
            next_one.run()
        assert next_one.terms == [term]


def test_a_number_of_shards_counts_where_no_member_runs_and_is_not_ignored_in_silence_where_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.Replica, "leave", lambda replica: None)
    with pytest.raises(KeyboardInterrupt):
        Member(tmp_path, monkeypatch, [killed]).run()
    storage = Member(tmp_path, monkeypatch, []).storage
    fellow = MemberRecord(term=1, seat=2, process="other", host="there", pid=1, joined_ms=0)
    storage.put(names.member(1, 2, 1), seal("member", fellow))
    for runs, led in ((True, 1), (False, 3)):
        member = Member(tmp_path, monkeypatch, [killed])
        member.driver._shards = 3
        member.wishes.member_runs = lambda member, runs=runs: runs
        with pytest.raises(KeyboardInterrupt):
            member.run()
        assert member.led == [led]
        told = [text for text in member.said if "PARALLELISM 3 IS NOT USED: other members" in text]
        assert len(told) == runs
