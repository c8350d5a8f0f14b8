from __future__ import annotations

import pickle
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast.errors import CorruptionError, ObjectMissing
from holdfast.storage.checksums import checksum, read_extent, stream_extent
from holdfast.storage.local_directory import LocalStorage
from holdfast.testing.faulty_storage import FaultyStorage


class Extent(NamedTuple):
    object: str
    offset: int
    length: int
    checksum: str


BODY = b"alpha|beta|gamma"
BETA = Extent("data/bundle", 6, 4, checksum(b"beta"))


@pytest.fixture
def storage(tmp_path: Path) -> FaultyStorage:
    storage = FaultyStorage(LocalStorage(tmp_path))
    storage.put("data/bundle", BODY)
    return storage


def test_the_checksum_never_changes() -> None:
    assert checksum(b"") == "99aa06d3014798d86001c324468d497f"
    assert checksum(memoryview(b"holdfast")) == checksum(b"holdfast")
    assert len(checksum(b"x")) == 32


def test_an_intact_extent_is_read(storage: FaultyStorage) -> None:
    assert read_extent(storage, BETA) == b"beta"


def test_a_flipped_bit_is_named_with_object_offset_and_both_sums(storage: FaultyStorage) -> None:
    storage.flip_at_rest("data/bundle", offset=7)
    with pytest.raises(CorruptionError) as caught:
        read_extent(storage, BETA)
    text = str(caught.value)
    found = checksum(storage.get("data/bundle", 6, 4))
    for part in ("'data/bundle'", "offset 6", BETA.checksum, found, "restore it from a copy"):
        assert part in text
    assert "\n" not in text
    assert str(pickle.loads(pickle.dumps(caught.value))) == text


def test_damage_outside_the_extent_does_not_matter(storage: FaultyStorage) -> None:
    storage.flip_at_rest("data/bundle", offset=0)
    assert read_extent(storage, BETA) == b"beta"


@pytest.mark.parametrize("length", [0, 6, 9])
def test_a_truncated_object_says_how_much_is_left(storage: FaultyStorage, length: int) -> None:
    storage.truncate_at_rest("data/bundle", length)
    with pytest.raises(
        CorruptionError, match=rf"truncated: 4 bytes expected at offset 6, {max(0, length - 6)} found"
    ):
        read_extent(storage, BETA)


def test_a_missing_object_is_missing_not_damaged(storage: FaultyStorage) -> None:
    with pytest.raises(ObjectMissing, match="'data/gone'"):
        read_extent(storage, BETA._replace(object="data/gone"))


def test_a_stream_gives_the_extent_in_parts(storage: FaultyStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.storage.checksums.PART_BYTES", 3)
    assert list(stream_extent(storage, BETA)) == [b"bet", b"a"]


def test_a_stream_of_damaged_or_missing_bytes_does_not_end_well(storage: FaultyStorage) -> None:
    storage.flip_at_rest("data/bundle", offset=7)
    with pytest.raises(CorruptionError, match="damaged"):
        list(stream_extent(storage, BETA))
    storage.truncate_at_rest("data/bundle", 8)
    with pytest.raises(CorruptionError, match="4 bytes expected at offset 6, 2 found"):
        list(stream_extent(storage, BETA))
    storage.delete(["data/bundle"])
    with pytest.raises(ObjectMissing):
        list(stream_extent(storage, BETA))
