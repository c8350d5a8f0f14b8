"""Names of files: which ones are read, and how Spark is told a name.

A name is final unless it says otherwise: names that Spark itself passes over (beginning with `.` or `_`,
ending in `._COPYING_`) and those that tools give to a file that is still being written (`.tmp`, `.filepart`)
are left alone until the file has its final name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

UNFINISHED = (".tmp", "._COPYING_", ".filepart")
NAMES_SHOWN = 3

RAW_LOCAL_FILES = {
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}
"""Reader options for local names with a colon: Hadoop's local file system looks for a checksum file beside
each file, and cannot name it then."""


def is_final(name: str) -> bool:
    """Whether a file of this name is to be read."""
    return not name.startswith((".", "_")) and not name.endswith(UNFINISHED)


def is_text(name: str) -> bool:
    """Whether a name can be told to Spark and written in a plan: bytes that are no UTF-8 cannot."""
    if name.isascii():
        return True
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def literal(path: str) -> str:
    """A path as Spark's reader takes it literally: it expands glob characters."""
    return "".join(f"\\{char}" if char in "\\*?[]{}" else char for char in path)


def some_of(names: Collection[str] | Iterable[str]) -> str:
    """A few of the names, for a message: `'a', 'b', 'c' and 9 more`."""
    ordered = sorted(names)
    shown = ", ".join(map(ascii, ordered[:NAMES_SHOWN]))
    more = len(ordered) - NAMES_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown
