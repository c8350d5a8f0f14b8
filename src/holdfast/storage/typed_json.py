"""JSON as values of a declared type.

Always true: any number of threads may read a type for the first time at once. msgspec finds out once per type
what its fields are, and shows a second thread what it has found so far: the process then ends with a
segmentation fault. So types are learned one at a time.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_learning = threading.Lock()
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


def from_json(data: bytes | str, type: type[T]) -> T:
    """The value that `data` holds. msgspec.DecodeError: it holds none of that type."""
    return _decoder(type).decode(data)


def learn(type: type[T]) -> type[T]:
    """The type itself, from now on safe to be used by msgspec in several threads."""
    _decoder(type)
    return type


def _decoder(type: type[T]) -> msgspec.json.Decoder[T]:
    found = _decoders.get(type)
    if found is None:
        with _learning:
            found = _decoders.setdefault(type, msgspec.json.Decoder(type))
    return found
