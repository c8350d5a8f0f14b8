"""Where the states of single keys are saved (see docs/formats/saved-key.md).

A save is one small blob under the operator's uid and the key's bytes. Nothing here knows what is in it, but
for its first `ORDER_BYTES`: of two saves of a key the one whose first bytes are greater is the later one.
Always true of the storages that come with Holdfast: a save is durable when `save` returns; at every moment,
also when the power goes, a key has its last durable save or a later one; a later save is never replaced by an
earlier one.
Never here: when a key is saved or fetched, and what becomes of one that cannot be (see tasks.uncoordinated).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from holdfast.errors import StorageError

ORDER_BYTES = 20
"""How many leading bytes of a save say how late it is."""


@dataclass(frozen=True, slots=True)
class StateId:
    """What a save is of: an operator's uid, and the key as canonical bytes (docs/formats/keys.md)."""

    operator: str
    key: bytes

    def __str__(self) -> str:
        return f"{self.operator}/{self.key.hex()}"


class SaveSuperseded(StorageError):
    """The storage holds a later save of this key: another leader, or another machine, goes on with it."""


class StateStorage(ABC):
    """What a storage of saves does. Crosses to workers, so it pickles, and connects when it is first used.

    Called from several threads at once, never from the thread that processes rows. What it raises counts as
    a failure: a save is tried again later, a fetch has no answer.
    """

    @abstractmethod
    def save(self, id: StateId, data: bytes) -> None:
        """Keep `data` in place of what was there, durable on return: either of the two is there whatever
        happens, never neither. May be called again with the same or a later save of the key."""

    @abstractmethod
    def fetch(self, id: StateId) -> bytes | None:
        """What was saved last. None: nothing ever was. An answer that cannot be had is an error, never None:
        None lets an empty state take the key's place."""

    @abstractmethod
    def keys(self, operator: str) -> Iterable[StateId]:
        """Everything saved for an operator, in any order. Not called while rows are processed."""

    def save_many(self, saves: Sequence[tuple[StateId, bytes]]) -> None:
        """Save some keys, each by itself. An error may leave some of them saved."""
        for id, data in saves:
            self.save(id, data)

    def near(self, id: StateId) -> bytes:
        """Keys for which this is alike are cheaper to save together: they come in one `save_many`."""
        return b""

    def fetch_many(self, ids: Sequence[StateId]) -> list[bytes | None]:
        """Fetch some keys, aligned."""
        return [self.fetch(id) for id in ids]

    def superseded(self, id: StateId) -> SaveSuperseded:
        """What `save` raises when the storage holds a later save of the key."""
        return SaveSuperseded(
            f"a later save of {id} is in storage than the one to be kept; "
            "another leader goes on with it, or the storage belongs to another checkpoint: give each its own"
        )


def is_later(data: bytes, than: bytes) -> bool:
    """Whether one save of a key is later than another."""
    return data[:ORDER_BYTES] > than[:ORDER_BYTES]
