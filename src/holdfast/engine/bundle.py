"""Small payloads of one epoch share one object: an epoch of a few rows costs one durable write, not one per
shard and stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.checkpoint.records import Extent
from holdfast.engine.work import Payload
from holdfast.storage.contract import Storage


class Bundle:
    """One object, written once."""

    def __init__(self, storage: Storage, name: str) -> None:
        self._storage, self._name = storage, name

    def write(self, payloads: Sequence[tuple[Callable[[Payload], None], Payload]]) -> None:
        """Make the inline payloads durable; then hand every payload, as an extent, to its receiver."""
        pieces: list[bytes] = []
        offset = 0
        ready: list[tuple[Callable[[Payload], None], Payload]] = []
        for receive, payload in payloads:
            if payload.inline is not None:
                extent = Extent(
                    object=self._name, offset=offset, length=payload.length, checksum=payload.checksum
                )
                pieces.append(payload.inline)
                offset += payload.length
                payload = Payload(checksum=payload.checksum, length=payload.length, extent=extent)
            ready.append((receive, payload))
        if pieces:
            self._storage.put(self._name, b"".join(pieces))
        for receive, payload in ready:
            receive(payload)
