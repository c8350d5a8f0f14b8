"""The code of other modules that ships with a job: of its own packages, and of what lies beside the file that
declares it, or around it.

Always true: two processes that have the same files find the same, wherever the files are and whatever the
processes have done: code and names are looked at, and no value, which may come from the environment.
Never here: the module that the functions of a job are in themselves (see fingerprint).
"""

from __future__ import annotations

import os
import sys
import sysconfig
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePath

INSTALLED = tuple({sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")})
_Reached = Iterator[tuple[object, frozenset[str]]]
"""Functions, classes and modules; and of a module which names are used of it."""


class ShippedCode:
    """`own` names the packages of the job itself; `file`: where it is declared; `digest`: that of code."""

    def __init__(self, own: frozenset[str], file: str, digest: Callable[[types.CodeType], str]) -> None:
        self._own, self._digest = own, digest
        self._directory = PurePath(os.path.abspath(file)).parent

    def reached_from(self, value: object, names: frozenset[str]) -> list[str]:
        """All code that is reached from a function, a class or a module, part by part. `names`: those that
        are used of a module. Empty: it does not ship with the job."""
        found: list[str] = []
        waiting, seen = deque([(value, names)]), set[tuple[int, frozenset[str]]]()
        while waiting:
            each, used = waiting.popleft()
            if (id(each), used) in seen or not self._ships(each):
                continue
            seen.add((id(each), used))
            if isinstance(each, types.FunctionType):
                found += [each.__qualname__, self._digest(each.__code__)]
            elif isinstance(each, type):
                found += [each.__qualname__, *(base.__qualname__ for base in each.__bases__)]
            waiting.extend(_reached(each, used))
        return found

    def _ships(self, value: object) -> bool:
        if isinstance(value, types.ModuleType):
            package = package_of(value.__name__)
        elif isinstance(value, types.FunctionType | type):
            package = package_of(value.__module__ or "")
        else:
            return False
        if package == "holdfast" or package in sys.builtin_module_names:
            return False
        if package in self._own:
            return True
        place = _place(package)
        if place is None or str(place).startswith(INSTALLED):
            return False
        return place.parent == self._directory or place in (self._directory, *self._directory.parents)


def names_in(code: types.CodeType) -> set[str]:
    """The names that code uses, and those of the functions within it."""
    inner = (const for const in code.co_consts if isinstance(const, types.CodeType))
    return set(code.co_names).union(*map(names_in, inner))


def package_of(module: str) -> str:
    return module.partition(".")[0]


def _reached(value: object, names: frozenset[str]) -> _Reached:
    """What a function names, a class consists of, or a module has under these names."""
    if isinstance(value, types.ModuleType):
        yield from _of_these(names, vars(value))
    elif isinstance(value, types.FunctionType):
        yield from _of_these(frozenset(names_in(value.__code__)), value.__globals__)
        # What a decorator has wrapped is in its closure.
        for cell in value.__closure__ or ():
            yield from _functions(_content(cell))
    elif isinstance(value, type):
        for base in value.__bases__:
            yield base, frozenset()
        for _, member in sorted(vars(value).items()):
            yield from _functions(member)


def _of_these(names: frozenset[str], space: Mapping[str, object]) -> _Reached:
    for name in sorted(names & space.keys()):
        yield space[name], names if isinstance(space[name], types.ModuleType) else frozenset()


def _functions(value: object) -> _Reached:
    if isinstance(value, property):
        parts: list[object] = [value.fget, value.fset]
    else:
        parts = [value.__func__ if isinstance(value, staticmethod | classmethod) else value]
    for part in parts:
        if isinstance(part, types.FunctionType):
            yield part, frozenset()


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _place(package: str) -> PurePath | None:
    """The directory of a package, or the file of a module; None: it is not known."""
    module = sys.modules.get(package)
    places = [*getattr(module, "__path__", ()), getattr(module, "__file__", None)]
    return next((PurePath(os.path.abspath(place)) for place in places if place), None)
