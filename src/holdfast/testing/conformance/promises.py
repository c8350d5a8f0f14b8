"""Promises of a contract, how each is asked for, and the report on all of them.

Always true: a promise that is broken does not keep the others from being asked for; one that was not asked
for says why.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from holdfast.tasks.operators.result import cause_of

C = TypeVar("C")


class Seen(Exception):
    """A promise is broken; the text says what was seen."""


class NotAsked(Exception):
    """A promise cannot be asked for here; the text says why."""


@dataclass(frozen=True, slots=True)
class Broken:
    """One broken promise: its name, what is promised, what was seen instead, and what to do."""

    name: str
    promise: str
    seen: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.name}: {self.promise}\n    seen: {self.seen}\n    do:   {self.remedy}"


@dataclass(frozen=True, slots=True)
class Report:
    """The promises that a connector keeps, and those that it was not asked for, each with the reason."""

    kept: tuple[str, ...]
    not_asked: Mapping[str, str]

    def __str__(self) -> str:
        lines = [f"kept: {', '.join(self.kept)}"]
        return "\n".join([*lines, *(f"not asked: {name} ({why})" for name, why in self.not_asked.items())])


class BrokenPromises(AssertionError):
    """What a connector does not keep: every broken promise, each with what was seen and what to do."""

    def __init__(self, connector: str, asked: int, broken: tuple[Broken, ...]) -> None:
        super().__init__(connector, asked, broken)
        self.connector, self.asked, self.broken = connector, asked, broken

    def __str__(self) -> str:
        head = f"{self.connector} breaks {len(self.broken)} of {self.asked} promises"
        return "\n\n".join([f"{head} (holdfast/connectors/contract.py):", *map(str, self.broken)])


@dataclass(frozen=True, slots=True)
class _Promise(Generic[C]):
    name: str
    promise: str
    remedy: str
    ask: Callable[[C], None]


class Suite(Generic[C]):
    """The promises of one contract, in the order in which they are asked for."""

    def __init__(self) -> None:
        self._promises: list[_Promise[C]] = []

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(each.name for each in self._promises)

    def promise(
        self, name: str, promise: str, remedy: str
    ) -> Callable[[Callable[[C], None]], Callable[[C], None]]:
        """Make a function a promise: it raises Seen where that is broken."""

        def added(ask: Callable[[C], None]) -> Callable[[C], None]:
            self._promises.append(_Promise(name, promise, remedy, ask))
            return ask

        return added

    def then(self, other: Suite[C]) -> Suite[C]:
        """These promises, then those of another suite."""
        both: Suite[C] = Suite()
        both._promises = [*self._promises, *other._promises]
        return both

    def check(self, connector: str, only: Collection[str], new_case: Callable[[], C]) -> Report:
        """Ask for all promises, or for `only` those named, each with a case of its own."""
        if unknown := sorted({*only} - {*self.names}):
            raise ValueError(f"there are no promises {unknown}; there are: {', '.join(self.names)}")
        broken: list[Broken] = []
        kept: list[str] = []
        not_asked: dict[str, str] = {}
        for each in self._promises:
            if only and each.name not in only:
                not_asked[each.name] = "not among only=..."
                continue
            try:
                each.ask(new_case())
            except NotAsked as why:
                not_asked[each.name] = str(why)
            except Seen as seen:
                broken.append(Broken(each.name, each.promise, str(seen), each.remedy))
            except Exception as error:
                broken.append(Broken(each.name, each.promise, cause_of(error), each.remedy))
            else:
                kept.append(each.name)
        if broken:
            raise BrokenPromises(connector, len(kept) + len(broken), tuple(broken))
        return Report(tuple(kept), not_asked)


def hold(condition: object, seen: str) -> None:
    """Raise Seen unless the condition holds."""
    if not condition:
        raise Seen(seen)
