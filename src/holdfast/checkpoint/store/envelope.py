"""The wrapping of every stored record: one line that says what it is and how to check it, then JSON.

    holdfast <kind> <format> <checksum> <length>\\n{...}

Always true: `unseal` returns what `seal` was given, or raises; nothing that was read is executed. The
checksum (XXH3, 128 bits, hex) covers kind, format and JSON, so that no flipped bit reads as another kind
or format.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from holdfast.checkpoint.store.records import FORMAT, Record
from holdfast.errors import CorruptionError, RestoreError
from holdfast.storage.checksums import checksum
from holdfast.storage.typed_json import from_json

R = TypeVar("R", bound=Record)

_MAGIC = "holdfast"
_HEADER_BYTES_MAX = 256
_encoder = msgspec.json.Encoder(order="deterministic")


def seal(kind: str, record: Record) -> bytes:
    """The bytes to store for a record."""
    return seal_bytes(kind, _encoder.encode(record))


def seal_bytes(kind: str, body: bytes) -> bytes:
    """The bytes to store for what is no record, in the same wrapping."""
    return f"{_MAGIC} {kind} {FORMAT} {_sum(kind, FORMAT, body)} {len(body)}\n".encode() + body


def unseal(kind: str, type: type[R], data: bytes, name: str) -> R:
    """The record in `data`, which was read from the object `name`.

    CorruptionError: truncated, flipped or another kind. RestoreError: written by a newer Holdfast.
    """
    try:
        return from_json(unseal_bytes(kind, data, name), type)
    except msgspec.DecodeError as cause:
        raise CorruptionError(f"{name} does not read as a {kind} record ({cause}); {_REMEDY}") from cause


def unseal_bytes(kind: str, data: bytes, name: str) -> bytes:
    """What `seal_bytes` was given. Raises as `unseal` does."""
    line, newline, body = data.partition(b"\n")
    fields = line[:_HEADER_BYTES_MAX].decode("ascii", "replace").split(" ")
    if (
        not newline
        or len(fields) != 5
        or fields[0] != _MAGIC
        or not (fields[2].isdecimal() and fields[4].isdecimal())
    ):
        raise CorruptionError(f"{name} is not a Holdfast record (its first line is damaged); {_REMEDY}")
    found_kind, format, stored, length = fields[1], int(fields[2]), fields[3], int(fields[4])
    if len(body) != length:
        raise CorruptionError(f"{name} is damaged: it holds {len(body)} bytes of {length}; {_REMEDY}")
    found = _sum(found_kind, format, body)
    if found != stored:
        raise CorruptionError(f"{name} is damaged: its checksum is {found}, not {stored}; {_REMEDY}")
    if found_kind != kind:
        raise CorruptionError(f"{name} holds a {found_kind} record, not a {kind} record; {_REMEDY}")
    if format > FORMAT:
        raise RestoreError(
            f"{name} was written by a newer Holdfast (format {format}, this one reads up to {FORMAT}); "
            "upgrade Holdfast"
        )
    return body


_REMEDY = "restore it from a copy of the storage, or let the job fall back to an older checkpoint"


def _sum(kind: str, format: int, body: bytes) -> str:
    return checksum(f"{kind} {format} ".encode() + body)
