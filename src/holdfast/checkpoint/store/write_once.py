"""Writing a name once, whatever storage answers.

Always true: on return the outcome is known. *Unknown* is not *failed*: it is resolved by reading back,
never by guessing.
"""

from __future__ import annotations

from holdfast.errors import ObjectMissing, StorageError, UnknownOutcome
from holdfast.storage.contract import Put, Storage

TRIES_MAX = 5


def write_once(storage: Storage, name: str, data: bytes) -> bytes:
    """Put `data` under `name` unless something is there; return what is there now. Equal bytes: ours.

    UnknownOutcome: storage never said and could not be read back; a write of ours may still appear.
    """
    in_doubt = False
    for _ in range(TRIES_MAX):
        try:
            if storage.put_new(name, data) is Put.CREATED:
                return data
            return storage.get(name)
        except UnknownOutcome:
            in_doubt = True
            found = _read_back(storage, name)
            if found is not None:
                return found
        except ObjectMissing:
            # It was there and retention has deleted it: putting again settles that.
            continue
        except StorageError as cause:
            if in_doubt:
                raise _in_doubt(name) from cause
            raise
    raise _in_doubt(name)


def _read_back(storage: Storage, name: str) -> bytes | None:
    """What is durably there.

    Only a listing promises that; `get` alone may see what a power cut can still undo.
    """
    try:
        if any(entry.name == name for entry in storage.list(name)):
            return storage.get(name)
    except ObjectMissing:
        return None
    except StorageError as cause:
        raise _in_doubt(name) from cause
    return None


def _in_doubt(name: str) -> UnknownOutcome:
    return UnknownOutcome(
        f"it is not known whether {name} was written (up to {TRIES_MAX} tries); "
        "load the checkpoint again and go on from there"
    )
