"""Rows, and structs within them, as Python objects.

Always true: a row is a tuple of its columns in order, so it compares, hashes and unpacks as one; it cannot be
changed in place.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

_TUPLE_METHODS = ("count", "index")
_CLASSES_MAX = 1_000


class Row(tuple[Any, ...]):
    """A row, or a struct within one: its columns are `row.name`, `row["name"]` or `row[0]`.

    It cannot be changed: `row._replace(name=value)` gives a changed copy, `row._asdict()` a dict.
    """

    __slots__ = ()
    __fields__: ClassVar[tuple[str, ...]] = ()
    _places: ClassVar[Mapping[str, int]] = {}

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __getitem__(self, at: Any) -> Any:
        if not isinstance(at, str):
            return tuple.__getitem__(self, at)
        place = self._places.get(at)
        if place is None:
            raise KeyError(f"there is no column {at!r}; there are {', '.join(self.__fields__)}")
        return tuple.__getitem__(self, place)

    def __repr__(self) -> str:
        shown = (f"{name}={value!r}" for name, value in zip(self.__fields__, self, strict=True))
        return f"Row({', '.join(shown)})"

    def __reduce__(self) -> Any:
        return _made, (self.__fields__, tuple(self))

    def _replace(self, **changes: Any) -> Row:
        """The row with other values in the columns named."""
        unknown = [name for name in changes if name not in self._places]
        if unknown:
            raise TypeError(f"there are no columns {unknown}; there are {', '.join(self.__fields__)}")
        return tuple.__new__(
            type(self), (changes.get(n, v) for n, v in zip(self.__fields__, self, strict=True))
        )

    def _asdict(self) -> dict[str, Any]:
        """The columns by name."""
        return dict(zip(self.__fields__, self, strict=True))


@lru_cache(maxsize=_CLASSES_MAX)
def row_class(names: tuple[str, ...]) -> type[Row]:
    """The class of rows with these columns. Make one with `tuple.__new__(cls, values)`."""
    # A named tuple's own descriptors read a place of any tuple faster than a property does.
    readers: Any = namedtuple("Row", names, rename=True)  # type: ignore[misc]
    members: dict[str, Any] = {
        "__slots__": (),
        "__fields__": names,
        "_places": {name: place for place, name in enumerate(names)},
    }
    for place, name in enumerate(names):
        if name in _TUPLE_METHODS or not hasattr(Row, name):
            members[name] = vars(readers)[readers._fields[place]]
    return type("Row", (Row,), members)


def names_of(value: tuple[Any, ...]) -> tuple[str, ...]:
    """The columns that a tuple says it has: ours, Spark's rows and named tuples do; others say none."""
    names: Any = getattr(value, "__fields__", None) or getattr(value, "_fields", ())
    return tuple(names)


def as_dicts(value: Any) -> Any:
    """The value with every row in it as a dict."""
    if isinstance(value, Row):
        return {name: as_dicts(part) for name, part in zip(value.__fields__, value, strict=True)}
    if isinstance(value, dict):
        return {repr(key) if isinstance(key, tuple) else key: as_dicts(part) for key, part in value.items()}
    return [as_dicts(part) for part in value] if isinstance(value, list | tuple) else value


def _made(names: tuple[str, ...], values: tuple[Any, ...]) -> Row:
    return tuple.__new__(row_class(names), values)
