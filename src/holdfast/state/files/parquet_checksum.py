"""A checksum of a whole Parquet file, kept inside it, so that the file stays readable by everyone.

The footer's metadata has a last entry `holdfast.checksum` of 32 hexadecimal digits: XXH3 (128 bits) of the
file with these digits as zeros. Parquet's page checksums leave page headers and the footer uncovered; this
leaves nothing.
"""

from __future__ import annotations

import pyarrow as pa
import xxhash

from holdfast.errors import CorruptionError

_MARK = b"holdfast.checksum"
_DIGITS = 32
_BLANK = b"0" * _DIGITS
# Between key and value, Thrift's compact protocol writes the field header of a binary and its length.
_BETWEEN = 2


def sealed_metadata(metadata: dict[str, str]) -> dict[str, str]:
    """Footer metadata with room for the checksum, last."""
    return {**metadata, _MARK.decode(): _BLANK.decode()}


def seal(file: pa.Buffer) -> bytes:
    """The file with its checksum filled in."""
    data: bytes = file.to_pybytes()
    place = _place(data)
    assert place is not None, "a Parquet footer has no room for the checksum"
    assert data[place : place + _DIGITS] == _BLANK, "a Parquet footer is laid out in an unknown way"
    return data[:place] + _digest(data, place) + data[place + _DIGITS :]


def verify(data: bytes, name: str) -> None:
    """Refuse a file of which any byte changed. `name` is what the error calls it."""
    place = _place(data)
    if place is None:
        raise CorruptionError(
            f"delta {name} ({len(data)} bytes) is cut short or damaged: it has no readable footer"
        )
    found, expected = _digest(data, place), data[place : place + _DIGITS]
    if found != expected:
        raise CorruptionError(
            f"delta {name} ({len(data)} bytes) is damaged: its checksum is {found.decode()}, "
            f"{expected.decode(errors='replace')} was written"
        )


def _place(data: bytes) -> int | None:
    """Where the digits are; None if the file does not end as one of ours."""
    if len(data) < 12 or data[-4:] != b"PAR1":
        return None
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    mark = data.rfind(_MARK, max(footer, 0))
    if footer < 4 or mark < 0:
        return None
    place = mark + len(_MARK) + _BETWEEN
    return place if place + _DIGITS <= len(data) else None


def _digest(data: bytes, place: int) -> bytes:
    digest = xxhash.xxh3_128(data[:place])
    digest.update(_BLANK)
    digest.update(data[place + _DIGITS :])
    return digest.hexdigest().encode()
