"""Epochs as commits of a table in a lake: one each, with the rows and the mark of what is shown in it.

A table format takes a commit only if the table is still the one that the commit was made for. So a publisher
looks at the table, decides by the mark that it finds there, and commits on that very look. Where this is
refused, or no answer comes, it looks again: the mark says whether the epoch is there. A commit that lost its
answer and is still on its way finds the table changed, or is found.
Always true: rows and mark become visible in one step; of several publishers of an epoch one shows it; a mark
that is lower than it was is never written over. Where the format takes files that others have written, no row
of a large epoch passes through the driver.
Never here: a second try of the format's own library, which would not look at the mark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import pyarrow as pa

from holdfast.connectors.contract import Mark, StagedPart
from holdfast.connectors.lane_publisher import ELSEWHERE_FROM_BYTES, LanePublisher
from holdfast.connectors.lanes import LaneWriter
from holdfast.errors import (
    DefinitionError,
    HoldfastError,
    RestoreError,
    RetryableError,
    SinkWentBack,
    Unavailable,
    first_line,
    one_line,
)

Lanes = Callable[[LaneWriter], LanePublisher]
_MARKUP = re.compile("\\x1b\\[\\d*m|\u21b3 ?")
"""How Delta's library draws a chain of causes."""
LOOKS_MAX = 20
"""How often a publisher looks again where others change the table meanwhile, before it says so."""


class Look(Protocol):
    """A table as it was at one moment."""

    @property
    def epoch(self) -> int | None:
        """The newest epoch that it shows of one sink of one job; None: none was ever marked there."""

    def input(self) -> str:
        """What that epoch was made of; empty: not known any more. May take a while."""

    def data_files(self) -> LaneWriter | None:
        """What writes rows into data files as this table wants them, anywhere; their results tell `commit`
        of them, and they count for nothing before that. None: `commit` has to be given all rows."""

    def commit(self, rows: pa.Table | None, mark: Mark, files: Sequence[str] = ()) -> None:
        """Append the rows, or these files of rows, and set the mark, if the table is still the one that was
        looked at, in one step. Tried once. Raises whatever it likes: then it is not known whether it was
        done."""


class Lake(Protocol):
    """Where one sink of one job appends rows."""

    @property
    def name(self) -> str:
        """The table, for a person."""

    def look(self) -> Look | None:
        """The table as it is now; None: there is none. Raises what `told` says."""

    def told(self, cause: Exception) -> HoldfastError:
        """What an error of the format's library means. Unavailable: storage or catalog is not there now.
        DefinitionError: it lets nobody in, whoever tries again. Another one: that cannot be told."""

    def create(self, mark: Mark) -> None:
        """Make the table, empty and with the mark. Raises whatever it likes where that was not done, or may
        not have been: someone else may have made it."""


class _Rows:
    """The rows of one epoch. Many go into data files first, which are written again only for a table that
    wants others: where commits are refused because of other writers, the next is made at once."""

    def __init__(self, epoch: int, parts: Sequence[StagedPart], lanes: Lanes) -> None:
        self._epoch, self._parts, self._lanes = epoch, parts, lanes
        self._filed: tuple[LaneWriter, list[str]] | None = None
        self._table: pa.Table | None = None

    def commit_to(self, look: Look, mark: Mark) -> None:
        large = sum(part.bytes for part in self._parts) >= ELSEWHERE_FROM_BYTES
        files = look.data_files() if large else None
        if files is not None:
            look.commit(None, mark, self._in(files))
            return
        if self._table is None:
            self._table = pa.concat_tables([part.load() for part in self._parts])
        look.commit(self._table, mark)

    def _in(self, files: LaneWriter) -> list[str]:
        if self._filed is None or self._filed[0] != files:
            results = self._lanes(files).write(self._epoch, self._parts)
            self._filed = files, [file for result in results for file in result.files]
        return self._filed[1]


def told_by_kind(name: str, cause: Exception, *, passing: bool, final: bool) -> HoldfastError:
    """The error that says what one of a format's library means. `name`: the table."""
    said = _MARKUP.sub("", one_line(cause))
    if final:
        return DefinitionError(
            f"{name} cannot be used: {said}; check the credentials, their rights, and that the place is there"
        )
    if passing:
        return Unavailable(f"{name} is not to be had: {said}; see to the storage and the catalog")
    return RetryableError(f"{name} cannot be read: {said}; is it there?")


class EpochPublisher:
    keeps_rows: Final = True

    def __init__(self, lake: Lake, uid: str) -> None:
        self._lake, self._uid = lake, uid
        self._lanes: Lanes = LanePublisher
        self._known = 0
        """The newest epoch that this publisher has found or made marked."""

    def mark(self) -> Mark | None:
        look = self._lake.look()
        epoch = _marked(look)
        if look is None or epoch is None:
            return None
        self._known = max(self._known, epoch)
        return Mark(epoch, look.input())

    def published_through(self) -> int:
        epoch = _marked(self._lake.look()) or 0
        self._known = max(self._known, epoch)
        return epoch

    def begin(self, through: int) -> None:
        def step(look: Look | None) -> None:
            epoch = _marked(look)
            if (epoch or 0) < self._known:
                raise self._went_back(epoch)
            if look is None:
                self._lake.create(Mark(through))
            elif epoch is None or epoch < through:
                look.commit(None, Mark(through))

        self._looking(step, f"begin with epoch {through + 1}")
        self._known = max(self._known, through)

    def write_with(self, lanes: Lanes) -> None:
        self._lanes = lanes

    def publish(self, epoch: int, parts: Sequence[StagedPart]) -> None:
        parts = [part for part in sorted(parts, key=lambda part: part.part) if part.rows]
        if not parts:
            return
        rows, ours = _Rows(epoch, parts, self._lanes), Mark(epoch, parts[0].input)

        def step(look: Look | None) -> None:
            shown = _marked(look)
            if look is None or shown is None or shown < self._known:
                raise self._went_back(shown)
            if not self._is_shown(look, shown, ours):
                rows.commit_to(look, ours)

        self._looking(step, f"show epoch {epoch}")
        self._known = max(self._known, epoch)

    def close(self) -> None:
        pass

    def _looking(self, step: Callable[[Look | None], None], what: str) -> None:
        """Look and take the step, until it was taken on what was just looked at."""
        failure: Exception
        told: HoldfastError
        for _ in range(LOOKS_MAX):
            look = self._lake.look()
            try:
                step(look)
            except HoldfastError:
                raise
            except Exception as cause:
                failure, told = cause, self._lake.told(cause)
                if isinstance(told, DefinitionError):
                    raise told from cause
                # Refused, or perhaps done: the next look tells.
            else:
                return
        raise (Unavailable if isinstance(told, Unavailable) else RetryableError)(
            f"sink {self._uid!r} could not {what} in {self._lake.name}: {LOOKS_MAX} times it was changed "
            f"meanwhile or did not take the commit ({type(failure).__name__}: {first_line(failure)}); it is "
            "tried again"
        ) from failure

    def _is_shown(self, look: Look, shown: int, ours: Mark) -> bool:
        """Whether the epoch was shown before. RetryableError: another publisher is past it, and whether that
        one has the same rows is found by asking again."""
        if shown > max(ours.epoch, self._known):
            raise RetryableError(
                f"sink {self._uid!r}: another run has shown epoch {shown} in {self._lake.name} while "
                f"this one was about to show epoch {ours.epoch}; it is asked again what it shows"
            )
        if shown == ours.epoch and ours.input and look.input() not in ("", ours.input):
            raise RestoreError(
                f"sink {self._uid!r}: {self._lake.name} shows epoch {ours.epoch} made of other rows than "
                "this checkpoint has: another copy of the checkpoint writes there; stop one of the two, and "
                "give it a table of its own"
            )
        return shown >= ours.epoch

    def _went_back(self, epoch: int | None) -> SinkWentBack:
        found = "has no trace of this job" if epoch is None else f"shows epochs up to {epoch}"
        return SinkWentBack(
            f"sink {self._uid!r} went back: {self._lake.name} {found}, and it had shown epochs up to "
            f"{self._known}: it was restored from an older copy, or made again; bring back a newer copy of "
            "the table, or give the sink another uid: then it begins with the next epoch, without these"
        )


def _marked(look: Look | None) -> int | None:
    return None if look is None else look.epoch
