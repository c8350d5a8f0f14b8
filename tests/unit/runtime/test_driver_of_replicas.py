"""What the driver of a member of a set of replicas does about another number of shards; leading is played."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.chain.terms import newest_term
from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.errors import RetryableError, StorageError
from holdfast.graph.protection import ActiveReplicas
from holdfast.runtime import driver as module
from holdfast.runtime.epoch_loop import Ending
from tests.unit.runtime.test_driver import Played, Run, stop

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
