"""Where entries of states with a ttl are found by the time when they expire.

    key group (2) | 0x01 | state id (1) | due (7) | key bytes | map key, of a MAP      nothing

`due` is the expiry in ms since 1970, rounded up to a step (a sixteenth of the ttl, or a second if that is
longer), so that writes that follow each other closely lead to one place. Of a LIST there is one for all items
that are due together; an entry whose time is not known is due before everything else.
Always true: every entry of a state with a ttl is due, in the index, at or after its expiry and less than a
step later; a place that an entry has left is dropped when it is met. The index follows from the entries, so
no delta has it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from holdfast.state.encoding.keys import KEY_SPACE, PREFIX_BYTES
from holdfast.state.encoding.layout import ENTRY_KEY_BYTES_MAX, TIME_SPACE, StateField, StateLayout
from holdfast.state.encoding.ttl import STEP_MIN_MS, TTL_STEPS, UNKNOWN_US, Times, Ttl

DUE_BYTES = 7
_SIGN = 1 << (8 * DUE_BYTES - 1)
UNKNOWN_DUE_MS = -_SIGN
_GROUP_BYTES = PREFIX_BYTES - 1
_TIME_SPACE, _KEY_SPACE = bytes([TIME_SPACE]), bytes([KEY_SPACE])

assert ENTRY_KEY_BYTES_MAX + DUE_BYTES <= 511, "LMDB stores keys of up to 511 bytes"


def expiry_keys(
    state: StateField, bases: Sequence[bytes], times: Times, tails: Sequence[bytes] | None = None
) -> list[bytes]:
    """Where the index has entries of these keys and times; `tails`: the map keys of a MAP's entries."""
    assert state.ttl is not None
    head = _TIME_SPACE + state.suffix
    dues = (due_ms(state.ttl, times) + _SIGN).astype(">u8").view("V8").tolist()
    ends = tails if state.is_map and tails is not None else [b""] * len(bases)
    return [
        base[:_GROUP_BYTES] + head + due[1:] + base[PREFIX_BYTES:] + tail
        for base, due, tail in zip(bases, dues, ends, strict=True)
    ]


def due_ms(ttl: Ttl, times: Times) -> Times:
    """Where in the index entries of these times are."""
    step_us = max(STEP_MIN_MS, -(-ttl.ms // TTL_STEPS)) * 1_000
    known = times != UNKNOWN_US
    expires = np.where(known, times, 0) + ttl.us
    due: Times = np.where(known, -(-expires // step_us) * (step_us // 1_000), UNKNOWN_DUE_MS)
    return due


def expiry_prefix(group: int, state: StateField) -> bytes:
    """What the index has of one state in one key group begins with this, then comes when it is due."""
    return group.to_bytes(_GROUP_BYTES, "big") + _TIME_SPACE + state.suffix


def expiry_end(prefix: bytes, now_us: int) -> bytes:
    """Below this is what is due at an instant."""
    return prefix + (now_us // 1_000 + 1 + _SIGN).to_bytes(DUE_BYTES, "big")


def due_of(key: bytes) -> int:
    """When what stands in the index is due, in ms since 1970."""
    start = PREFIX_BYTES + 1
    return int.from_bytes(key[start : start + DUE_BYTES], "big") - _SIGN


def entry_of(layout: StateLayout, key: bytes) -> tuple[bytes, bytes]:
    """The base, and the map key or nothing, that stand in a key of the index."""
    whole = key[:_GROUP_BYTES] + _KEY_SPACE + key[PREFIX_BYTES + 1 + DUE_BYTES :]
    length = layout.keys.base_length(whole)
    return whole[:length], whole[length:]
