"""One object for the small payloads of an epoch: a few rows cost one durable write, not one per shard."""

from __future__ import annotations

from holdfast.checkpoint.store.records import Extent
from holdfast.storage.contract import Storage
from holdfast.tasks.messages import Payload


class Bundle:
    """One object, filled with `place` and written once with `write`. Extents count only after that."""

    def __init__(self, storage: Storage, name: str) -> None:
        self._storage, self._name = storage, name
        self._pieces: list[bytes] = []
        self._length = 0

    def place(self, payload: Payload) -> Extent:
        """Where the payload's bytes are, or will be once the bundle is written."""
        if payload.extent is not None:
            return payload.extent
        assert payload.inline is not None
        extent = Extent(
            object=self._name, offset=self._length, length=payload.length, checksum=payload.checksum
        )
        self._pieces.append(payload.inline)
        self._length += payload.length
        return extent

    def write(self) -> None:
        """Make what was placed durable. Nothing placed, nothing written."""
        if self._pieces:
            self._storage.put(self._name, b"".join(self._pieces))
