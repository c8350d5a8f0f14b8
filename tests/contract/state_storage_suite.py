"""What every storage for states of single keys does. Derive a class with a fixture `storage`."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.state.files.saved_key import ENTRIES, SavedKey
from holdfast.storage.key_saves.contract import SaveSuperseded, StateId, StateStorage

ANN = StateId("op", b"\x01\x00\x00\x00\x03ann")
AWKWARD = [b"", b"\x00", b"\xff" * 33, b"*?[a]\\:%", b"/../x", b"a:b", bytes(range(256)), b"k" * 403]


def save_of(epoch: int, body: bytes = b"body", term: int = 1) -> bytes:
    return SavedKey(term, epoch, b"i" * 16, 0, epoch, ENTRIES, body).pack()


def all_saves(storage: StateStorage, operator: str) -> Iterator[tuple[StateId, bytes]]:
    """Everything saved for an operator."""
    for id in storage.keys(operator):
        data = storage.fetch(id)
        if data is not None:
            yield id, data


class StateStorageContract:
    def test_what_was_never_saved_is_not_there(self, storage: StateStorage) -> None:
        assert storage.fetch(ANN) is None
        assert list(storage.keys("op")) == []

    def test_a_save_is_fetched_as_it_was_given(self, storage: StateStorage) -> None:
        for body in (b"", b"\x00\xff\n", b"x" * 300_000):
            storage.save(ANN, save_of(1, body))
            assert storage.fetch(ANN) == save_of(1, body)

    def test_the_last_of_several_saves_counts(self, storage: StateStorage) -> None:
        for epoch in range(1, 6):
            storage.save(ANN, save_of(epoch))
        assert storage.fetch(ANN) == save_of(5)

    @pytest.mark.parametrize(("epoch", "term"), [(9, 1), (300, 1), (1, 2)])
    def test_an_earlier_save_never_takes_the_place_of_a_later_one(
        self, storage: StateStorage, epoch: int, term: int
    ) -> None:
        later = save_of(epoch, term=term)
        storage.save(ANN, later)
        with pytest.raises(SaveSuperseded, match="a later save of op/"):
            storage.save(ANN, save_of(8))
        with pytest.raises(SaveSuperseded):
            storage.save_many([(ANN, save_of(8)), (StateId("op", b"bob"), save_of(8))])
        assert storage.fetch(ANN) == later

    def test_the_same_save_may_come_again(self, storage: StateStorage) -> None:
        storage.save(ANN, save_of(3))
        storage.save(ANN, save_of(3, b"other body"))
        assert storage.fetch(ANN) == save_of(3, b"other body")

    def test_any_bytes_are_a_key(self, storage: StateStorage) -> None:
        ids = [StateId("op", key) for key in AWKWARD]
        storage.save_many([(id, save_of(1, id.key)) for id in ids])
        assert storage.fetch_many(ids) == [save_of(1, id.key) for id in ids]
        assert set(storage.keys("op")) == set(ids)

    def test_operators_do_not_meet(self, storage: StateStorage) -> None:
        other = StateId("op2", ANN.key)
        storage.save(ANN, save_of(1))
        assert storage.fetch(other) is None
        storage.save(other, save_of(2))
        assert list(storage.keys("op")) == [ANN]
        assert list(storage.keys("op2")) == [other]
        assert storage.fetch_many([other, ANN, StateId("op", b"none")]) == [save_of(2), save_of(1), None]

    def test_threads_do_not_disturb_each_other(self, storage: StateStorage) -> None:
        ids = [StateId("op", f"k{i}".encode()) for i in range(40)]

        def work(id: StateId) -> bytes | None:
            for epoch in range(1, 6):
                storage.save(id, save_of(epoch))
            return storage.fetch(id)

        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(work, ids)) == {save_of(5)}

    def test_the_latest_of_saves_at_once_stays(self, storage: StateStorage) -> None:
        def work(epoch: int) -> None:
            try:
                storage.save(ANN, save_of(epoch))
            except SaveSuperseded:
                return

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, [*range(40, 0, -1), *range(1, 41)]))
        assert storage.fetch(ANN) == save_of(40)

    def test_it_crosses_to_workers_after_use(self, storage: StateStorage) -> None:
        storage.save(ANN, save_of(1))
        again: StateStorage = pickle.loads(pickle.dumps(storage))
        assert again.fetch(ANN) == save_of(1)
