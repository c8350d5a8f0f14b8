"""What a FileSource tells a person: each thing once, for as long as it stays the same thing."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.connectors.files.locations import Listing, some_of

CROWDED = 100_000
"""How many files that were read make a directory slow to list."""


class FileNews:
    """Learns of every look at a directory and keeps what has not been told yet."""

    def __init__(self, path: str, pattern: str) -> None:
        self._path, self._pattern = path, pattern
        self._untold: list[str] = []
        self._first_look = True
        self._there = True
        self._directories_told = self._crowd_told = False
        self.unreadable: frozenset[str] = frozenset()
        """Names that cannot be read, as of the last look."""

    def taken(self) -> list[str]:
        """What was not told yet."""
        untold, self._untold = self._untold, []
        return untold

    def look(self, listing: Listing, known: int, unreadable: Sequence[str]) -> None:
        """Take what a listing shows; `known` of its files were planned before."""
        self._tell_whether_there(listing)
        if self._first_look and listing.there and not listing.new:
            self._tell_of_nothing(known)
        self._first_look = False
        if listing.directories and not self._directories_told:
            self._directories_told = True
            self._say(
                f"subdirectories are not read: {some_of(listing.directories)}; "
                "give each a source of its own, or move the files up"
            )
        if new := set(unreadable) - self.unreadable:
            self._say(
                f"SET ASIDE, not read, because such names cannot be read: {some_of(new)}; "
                "rename them (in UTF-8; in a bucket printable and without backslash), then they are read"
            )
        self.unreadable = frozenset(unreadable)
        if known >= CROWDED and not self._crowd_told:
            self._crowd_told = True
            self._say(
                f"{known} files there were read before, and every look lists them all and remembers their "
                "names; move files away that no retained checkpoint needs"
            )
        for then, now in listing.changed:
            grown = now.size - then.size
            what = f"has grown by {grown} bytes" if grown > 0 else "was changed"
            self._say(
                f"file {then.name!r} {what} since it was planned: that is not read, because a file is read "
                "once; write new rows to new files"
            )

    def _tell_whether_there(self, listing: Listing) -> None:
        if listing.there != self._there:
            self._say("is there again" if listing.there else "does not exist any more; restore the directory")
        self._there = listing.there

    def _tell_of_nothing(self, known: int) -> None:
        if known:
            self._say(
                f"nothing new: {known} files there were read before; rows added to such a file are not read, "
                "new files are"
            )
        else:
            self._say(f"no file to read yet: none matches pattern {self._pattern!r}")

    def _say(self, text: str) -> None:
        self._untold.append(f"source path {self._path}: {text}")


class ColumnNews:
    """Learns of the columns that files have and keeps what has not been told yet.

    `complete`: they are all that a file has, and the case of their letters does not count (CSV headers,
    Parquet). Else they are keys that some rows have (JSON).
    """

    def __init__(self, path: str, declared: Sequence[str], complete: bool) -> None:
        self._path, self._declared, self._complete = path, declared, complete
        self._known = set(map(self._key, declared))
        self._missing: set[str] = set()
        self._untold: list[str] = []
        self.undeclared: dict[str, str] = {}
        """Columns that were seen and are not declared -> the file that had each first."""

    def taken(self) -> list[str]:
        """What was not told yet."""
        untold, self._untold = self._untold, []
        return untold

    def _key(self, name: str) -> str:
        return name.casefold() if self._complete else name

    def look(self, file: str, columns: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """Take the columns of a file, and give them back; None where they cannot be those of its rows,
        because none of them is declared."""
        if columns is None:
            return None
        there = set(map(self._key, columns))
        if self._complete and not there & self._known:
            return None
        for name in columns:
            if self._key(name) not in self._known and name not in self.undeclared:
                self.undeclared[name] = file
                self._say(
                    f"new column {name!r}, first seen in file {file!r}, is not declared and not read; "
                    "add it to the schema to read it"
                )
        missing = [name for name in self._declared if self._key(name) not in there] if self._complete else []
        for name in set(missing) - self._missing:
            self._missing.add(name)
            self._say(f"column {name!r} is missing in file {file!r}: it is null there")
        return columns

    def _say(self, text: str) -> None:
        self._untold.append(f"source path {self._path}: {text}")
