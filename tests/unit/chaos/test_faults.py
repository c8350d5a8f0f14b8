"""The schedule: by the seed alone, every kind in it."""

from __future__ import annotations

from itertools import islice

from holdfast.chaos.faults import (
    CLUSTER_ONLY,
    ENDS_DRIVER,
    ON_REQUEST,
    Kind,
    schedule,
    usual_kinds,
    worker_steps,
)


def test_the_same_seed_gives_the_same_faults() -> None:
    kinds = usual_kinds(cluster=False)
    assert list(islice(schedule(7, kinds), 100)) == list(islice(schedule(7, kinds), 100))
    assert list(islice(schedule(7, kinds), 100)) != list(islice(schedule(8, kinds), 100))
    assert list(islice(worker_steps(7), 20)) == list(islice(worker_steps(7), 20))


def test_every_kind_comes_up_before_the_deck_is_shuffled_again() -> None:
    kinds = usual_kinds(cluster=True)
    cheap = [kind for kind in kinds if kind not in ENDS_DRIVER]
    deck = 3 * len(cheap) + len(kinds) - len(cheap)
    drawn = [fault.kind for fault in islice(schedule(3, kinds), 2 * deck)]
    assert set(drawn[:deck]) == set(drawn[deck:]) == set(kinds)
    assert [fault.number for fault in islice(schedule(3, kinds), 5)] == [1, 2, 3, 4, 5]


def test_the_usual_kinds_are_what_the_master_can_suffer_again_and_again() -> None:
    assert set(usual_kinds(cluster=True)) == set(Kind) - ON_REQUEST
    assert set(usual_kinds(cluster=False)) == set(Kind) - ON_REQUEST - CLUSTER_ONLY
    assert len(usual_kinds(cluster=False)) >= 8


def test_a_fault_says_in_words_what_it_does() -> None:
    for fault in islice(schedule(1, tuple(Kind)), 60):
        assert str(fault).startswith(fault.kind)
