from __future__ import annotations

import pytest

from holdfast.checkpoint.store import envelope
from holdfast.checkpoint.store.envelope import seal, unseal
from holdfast.checkpoint.store.records import FORMAT, FloorRecord, TermRecord
from holdfast.errors import CorruptionError, RestoreError

RECORD = FloorRecord(floor=12, term=3, run="r")


def test_a_record_reads_back_as_written() -> None:
    assert unseal("floor", FloorRecord, seal("floor", RECORD), "floor/12") == RECORD


def test_the_first_line_says_what_it_is() -> None:
    kind, format, _, length = seal("floor", RECORD).split(b"\n")[0].decode().split(" ")[1:]
    assert (kind, format, int(length)) == (
        "floor",
        str(FORMAT),
        len(seal("floor", RECORD).split(b"\n", 1)[1]),
    )


def test_every_flipped_bit_is_found() -> None:
    data = seal("floor", RECORD)
    for place in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[place // 8] ^= 1 << place % 8
        with pytest.raises(CorruptionError, match="floor/12"):
            unseal("floor", FloorRecord, bytes(damaged), "floor/12")


def test_every_truncation_is_found() -> None:
    data = seal("floor", RECORD)
    for length in range(len(data)):
        with pytest.raises(CorruptionError, match="floor/12"):
            unseal("floor", FloorRecord, data[:length], "floor/12")


def test_bytes_after_the_end_are_found() -> None:
    with pytest.raises(CorruptionError):
        unseal("floor", FloorRecord, seal("floor", RECORD) + b" ", "floor/12")


def test_another_kind_is_refused() -> None:
    with pytest.raises(CorruptionError, match="holds a floor record, not a term record"):
        unseal("term", TermRecord, seal("floor", RECORD), "terms/1")


def test_a_newer_format_asks_for_an_upgrade(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envelope, "FORMAT", FORMAT + 1)
    data = seal("floor", RECORD)
    monkeypatch.undo()
    with pytest.raises(RestoreError, match=r"newer Holdfast.*upgrade"):
        unseal("floor", FloorRecord, data, "floor/12")
