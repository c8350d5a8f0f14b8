"""What a part has still to read of a channel, by its position there."""

from __future__ import annotations

import pytest

from holdfast.checkpoint.chain.channels import Channel
from holdfast.checkpoint.chain.live_files import SharedList
from holdfast.checkpoint.store.records import Extent, SentFile
from holdfast.runtime.parts.channel_source import Position, unread_files
from holdfast.runtime.parts.waiting import waiting_in


def sent(epoch: int, part: int) -> SentFile:
    extent = Extent(object=f"{epoch}-{part}", offset=0, length=100, checksum="")
    return SentFile(channel="c", epoch=epoch, part=part, extent=extent, rows=5)


CHANNEL = Channel(through=6, files=SharedList([sent(epoch, part) for epoch in (2, 3, 5) for part in (0, 1)]))


@pytest.mark.parametrize(
    ("epoch", "files", "unread"),
    [
        (0, 0, ["2-0", "2-1", "3-0", "3-1", "5-0", "5-1"]),
        (1, 1, ["2-1", "3-0", "3-1", "5-0", "5-1"]),
        (2, 2, ["5-0", "5-1"]),
        (4, 1, ["5-1"]),
        (6, 0, []),
    ],
)
def test_what_was_read_is_not_read_again(epoch: int, files: int, unread: list[str]) -> None:
    found = unread_files(CHANNEL, Position(epoch, files))
    assert [file.extent.object for file in found] == unread


def test_files_are_left_out_of_the_epoch_only_that_the_position_is_in() -> None:
    """The rest of epoch 4 was given up with the channel that was there before this one."""
    assert len(unread_files(CHANNEL, Position(3, 1))) == 2


@pytest.mark.parametrize(("limits", "share"), [((1_000, 10), 0.4), ((400, 10), 1.0), ((1_000, 2), 1.0)])
def test_a_channel_is_full_by_bytes_or_by_epochs(limits: tuple[int, int], share: float) -> None:
    found = waiting_in("c", CHANNEL, "scoring", Position(2), limits)
    assert (found.epochs, found.rows, found.bytes, found.kept_bytes) == (2, 20, 400, 200)
    assert found.share == share


def test_without_limits_no_channel_is_full() -> None:
    assert waiting_in("c", CHANNEL, "scoring", Position()).share == 0
