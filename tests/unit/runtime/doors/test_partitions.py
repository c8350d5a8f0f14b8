"""Files of a channel that are read by one task."""

from __future__ import annotations

import pytest

from holdfast.checkpoint.store.records import Extent, SentFile
from holdfast.runtime.doors import partitions
from holdfast.runtime.doors.partitions import OPEN_BYTES, PARTITION_BYTES, packed


def files(*lengths: int) -> list[SentFile]:
    return [
        SentFile(
            channel="c",
            epoch=epoch,
            part=0,
            extent=Extent(object=f"o{epoch}", offset=0, length=n, checksum=""),
            rows=1,
        )
        for epoch, n in enumerate(lengths, 1)
    ]


def sizes(found: list[partitions.FilesPartition]) -> list[int]:
    return [len(each.files) for each in found]


def test_small_files_share_partitions_and_keep_their_order() -> None:
    many = files(*[1_000] * 1_000)
    found = packed(many, 4)
    assert [file for each in found for file in each.files] == many
    most = PARTITION_BYTES // (1_000 + OPEN_BYTES)
    assert sizes(found) == [most] * (1_000 // most) + [1_000 % most] * (1_000 % most > 0)


@pytest.mark.parametrize(
    ("count", "least", "expected"),
    [(0, 4, []), (1, 4, [1]), (4, 4, [1] * 4), (7, 4, [1] * 7), (8, 4, [2] * 4), (8, 1, [8])],
)
def test_there_are_as_many_partitions_as_are_asked_for_if_there_are_so_many_files(
    count: int, least: int, expected: list[int]
) -> None:
    assert sizes(packed(files(*[1] * count), least)) == expected


def test_a_large_file_has_a_partition_of_its_own() -> None:
    large = 2 * PARTITION_BYTES
    assert sizes(packed(files(1, 1, large, 1, 1), 1)) == [2, 1, 2]
