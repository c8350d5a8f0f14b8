"""How the keys of an operator are saved on their own (docs/how-to/uncoordinated.md).

Never here: saving and fetching (see tasks.uncoordinated).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from holdfast.clock import duration_ms
from holdfast.errors import DefinitionError
from holdfast.state.files.key_books import Schedule
from holdfast.storage.key_saves.contract import StateStorage


@dataclass(frozen=True, kw_only=True)
class SavingPool:
    """How many threads do one kind of work, how long an idle one is kept, and how many keys may be under way.

    Keys that find no room are not taken; they stay dirty and are tried again.
    """

    threads: int = 1
    keep_alive: str = "120s"
    outstanding: int = 1_000

    def mistakes(self, name: str) -> Iterator[str]:
        if self.threads < 1 or self.outstanding < 1:
            yield f"{name} has {self.threads} threads and room for {self.outstanding}; give at least 1"
        yield from _duration(f"{name}.keep_alive", self.keep_alive)


@dataclass(frozen=True, kw_only=True)
class Uncoordinated:
    """Each key is saved on its own while it is dirty, by time (`every`) or by count (`events`), and fetched
    when it is first seen after its working copy was lost. Nothing of it is in the checkpoint.

    Guarantee: per key, a recovered state is no newer than its last save; what came after that save is lost,
    and counted. Times are those of the plan.
    """

    storage: StateStorage
    every: str | None = None
    events: int | None = None
    fetch_timeout: str = "1000ms"
    """How long an epoch that needs states of keys waits for the next answer."""
    failures_max: int = 10
    """After so many failed fetches in a row the storage is not asked for states, for `bypass_for`."""
    bypass_for: str = "600s"
    evict_after: str | None = None
    """A key that was not seen for so long is saved, if it is dirty, and leaves the working state."""
    batch: int = 50
    """Keys in one request to the storage."""
    serializing: SavingPool = field(default_factory=SavingPool)
    storing: SavingPool = field(default_factory=SavingPool)
    fetching: SavingPool = field(default_factory=SavingPool)

    def requests(self, pool: SavingPool) -> int:
        """How many requests a pool has room for."""
        return max(1, pool.outstanding // self.batch)

    @property
    def schedule(self) -> Schedule:
        return Schedule(None if self.every is None else duration_ms(self.every), self.events)

    def mistakes(self) -> Iterator[str]:
        """Everything wrong with the settings, remedy included."""
        if (self.every is None) == (self.events is None):
            yield "protection needs one of every='20s' and events=1000; give one of them"
        if self.events is not None and self.events < 1:
            yield f"protection saves at every {self.events!r}-th event; give a number of at least 1"
        if not isinstance(self.storage, StateStorage):
            yield (
                f"{type(self.storage).__name__} is not a storage for states of keys; "
                "give an instance of a class derived from hf.StateStorage, such as hf.FileStateStorage('...')"
            )
        for name in ("every", "fetch_timeout", "bypass_for", "evict_after"):
            yield from _duration(name, getattr(self, name))
        if self.failures_max < 1 or self.batch < 1:
            yield "failures_max and batch are at least 1; correct them"
        for name in ("serializing", "storing", "fetching"):
            yield from getattr(self, name).mistakes(name)


def _duration(name: str, text: str | None) -> Iterator[str]:
    if text is None:
        return
    try:
        if duration_ms(text) < 1:
            yield f"{name}={text!r} is no time at all; give at least '1ms'"
    except (DefinitionError, TypeError) as error:
        told = isinstance(error, DefinitionError)
        yield str(error) if told else f"{name}={text!r} is not text; write one such as '20s'"
