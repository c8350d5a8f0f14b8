"""Bytes kept durably under names: what every storage promises, whatever it is made of.

A name is a relative, '/'-separated path. No name is also the directory of another.

Durable means: it survives the end of this process and a power cut.
- `put_new` that returned CREATED or EXISTS, `put`, `put_file` and `put_stream` that returned: the object is
  durable, whole.
- `list` that returned: every entry that it shows is durable (a name deleted and made again by another process
  since the last listing excepted). `get` and `size` alone promise no such thing:
  they may see an object whose writer has not returned yet, and a power cut can still take it away.
- `delete` that returned: gone from sight, but a power cut may bring it back.

Always true: an object is seen whole or not at all; of all `put_new` calls for a name at most one
returns CREATED, unless it was deleted in between.
Never here: retrying, or deciding what an unknown outcome means (see checkpoint).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import NamedTuple, Protocol

from holdfast.errors import DefinitionError

RESERVED_DIRECTORY = ".tmp"
"""Unfinished writes of local storage live here; no name may begin with it, on any storage."""

NAME_BYTES_MAX = 900
"""Object stores allow 1,024 bytes for a key; the rest is room for the prefix in the url."""


class Put(Enum):
    """What `put_new` found. EXISTS says nothing about whose object it is: read it to learn that."""

    CREATED = "created"
    EXISTS = "exists"


class Entry(NamedTuple):
    """One object, as a listing shows it."""

    name: str
    size: int
    tag: str = ""
    """Another one whenever the object was replaced; empty: not told here."""


class Storage(Protocol):
    """A place for objects. Methods may be called from several threads and processes at once."""

    @property
    def url(self) -> str:
        """Where this is: `open_storage(url)` gives an equal storage, in any process."""

    def put_new(self, name: str, data: bytes) -> Put:
        """Create the object unless the name is taken.

        Raises StorageError (nothing was written) or UnknownOutcome (it may be there, now or a little later).
        After UnknownOutcome the same call may be made again; EXISTS may then mean the first one's object.
        """

    def put(self, name: str, data: bytes) -> None:
        """Create or replace the object. Raises as `put_new` does; calling again is harmless."""

    def put_file(self, name: str, path: Path) -> None:
        """Like `put`, from a local file, which is removed once its bytes are durable here, and not before."""

    def put_stream(self, name: str, parts: Callable[[], Iterator[bytes]]) -> None:
        """Like `put`, of the parts one after another, holding few of them at a time.

        `parts` is called again where the write has to begin again. What it raises is raised, and nothing is
        written.
        """

    def get(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """Read from `offset`, at most `length` bytes: fewer where the object ends sooner.

        Raises ObjectMissing or StorageError. Nothing is verified: see `checksums.read_extent`.
        """

    def size(self, name: str) -> int | None:
        """Bytes in the object; None: there is none."""

    def entry(self, name: str) -> Entry | None:
        """The object, with its tag where the storage has such; None: there is none."""

    def list(self, prefix: str) -> list[Entry]:
        """Every object whose name begins with `prefix`, at any depth, sorted by name. No unfinished writes.

        Objects written or deleted while it runs may be shown or not.
        """

    def delete(self, names: Iterable[str]) -> None:
        """Remove objects; missing ones are fine. After an error, some may be gone."""

    def local_path(self, name: str) -> Path | None:
        """Where the object is or would be as a local file, for mapping it; None: not on a file system."""


def is_object_name(name: str) -> bool:
    try:
        check_name(name)
    except DefinitionError:
        return False
    return True


def check_name(name: str) -> str:
    """Refuse a name that could leave the storage, hide in it, or differ between kinds of storage."""
    parts = name.split("/")
    if "" in parts or "." in parts or ".." in parts or parts[0] == RESERVED_DIRECTORY:
        raise DefinitionError(
            f"{name!r} is not an object name; use a relative path such as 'data/part-1', "
            f"with no empty, '.' or '..' parts, not under {RESERVED_DIRECTORY!r}"
        )
    if not name.isprintable() or "\\" in name or len(name.encode()) > NAME_BYTES_MAX:
        raise DefinitionError(
            f"{name[:80]!r} is not an object name; use printable characters, no backslash, "
            f"at most {NAME_BYTES_MAX} bytes"
        )
    return name


def check_prefix(prefix: str) -> str:
    """Refuse a listing prefix that no valid name could begin with. The empty prefix lists everything."""
    if prefix:
        check_name(prefix.removesuffix("/"))
    return prefix
