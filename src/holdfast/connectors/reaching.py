"""The storage that a source reads or a sink writes, which is not the checkpoint's: what its errors mean.

Always true: an outage is Unavailable, so the connector is waited for and nothing else is; what waiting does
not mend is one DefinitionError. Never around what reads or writes the checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.errors import DefinitionError, StorageError, StorageRefused, Unavailable, UnknownOutcome


@contextmanager
def reaching(place: str) -> Iterator[None]:
    """Errors of this place's storage within become what a connector says. `place`: for a person."""
    try:
        yield
    except StorageRefused as refusal:
        raise DefinitionError(f"{place} cannot be used: {refusal}") from refusal
    except (StorageError, UnknownOutcome) as outage:
        raise Unavailable(f"{place} cannot be used now: {outage}") from outage
