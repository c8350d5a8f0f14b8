"""The proof at the end of the demo: what the sinks hold against what plain arithmetic says they must hold.

Written on purpose without a line of Holdfast: the files are read with pyarrow, the expected rows computed
with numpy from the event's number alone. So it would notice a fault in any part of the engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

Longs = npt.NDArray[np.int64]
USERS, PAGES = 5_000, 40


@dataclass(frozen=True)
class Verdict:
    """What the sinks hold beside what they should. From `lost` on, all is zero when nothing went wrong."""

    generated: int
    counted: int
    users: int
    lost: int
    doubled: int
    unknown: int
    """Rows of events that were never generated."""
    wrong: int
    """Rows with another user, number or sum than arithmetic gives: state was lost or changed twice."""
    gaps: int
    """Users whose clicks are not numbered 1, 2, 3, ... without gap or repeat."""
    wrong_pages: int

    @property
    def proven(self) -> bool:
        return not (self.lost or self.doubled or self.unknown or self.wrong or self.gaps or self.wrong_pages)


def prove(generated: int, clicks: pa.Table, pages: pa.Table) -> Verdict:
    """Compare both sinks, row by row, with what `generated` events must have led to."""
    event, user, click, spent = (_longs(clicks, name) for name in ("event", "user", "click", "spent"))
    known = (event >= 0) & (event < generated)
    seen = np.bincount(event[known], minlength=generated)
    expected_user, expected_click, expected_spent = expected_clicks(generated)
    at = event[known]
    wrong = (
        (user[known] != expected_user[at])
        | (click[known] != expected_click[at])
        | (spent[known] != expected_spent[at])
    )
    return Verdict(
        generated=generated,
        counted=len(event),
        users=len(np.unique(user)),
        lost=int((seen == 0).sum()),
        doubled=int(np.maximum(seen - 1, 0).sum()),
        unknown=int((~known).sum()),
        wrong=int(wrong.sum()),
        gaps=broken_sequences(user, click),
        wrong_pages=_wrong_pages(generated, pages),
    )


def expected_clicks(generated: int) -> tuple[Longs, Longs, Longs]:
    """By event: its user, its number among the user's clicks, and the user's spending up to it."""
    user, _, cents = _events(generated)
    order = np.argsort(user, kind="stable")
    starts = np.searchsorted(user[order], np.arange(USERS))
    first = starts[user[order]]
    sums = np.cumsum(cents[order])
    before = np.concatenate([[0], sums])[first]
    click, spent = np.empty(generated, np.int64), np.empty(generated, np.int64)
    click[order] = np.arange(generated) - first + 1
    spent[order] = sums - before
    return user, click, spent


def broken_sequences(user: Longs, click: Longs) -> int:
    """How many users have numbers other than 1, 2, 3, ... each once."""
    order = np.lexsort((click, user))
    user, click = user[order], click[order]
    follows = np.concatenate([[False], user[1:] == user[:-1]])
    due = np.where(follows, np.concatenate([[0], click[:-1]]) + 1, 1)
    return len(np.unique(user[click != due]))


def read_sink(directory: Path) -> pa.Table:
    """All rows that any reader of the directory sees."""
    files = visible_files(directory)
    return pa.concat_tables([pq.ParquetFile(file).read() for file in files]) if files else pa.table({})


def visible_files(directory: Path) -> list[Path]:
    return sorted(directory.glob("[!._]*.parquet"))


def _wrong_pages(generated: int, pages: pa.Table) -> int:
    """Pages whose newest row in the sink, which shows the operator's state, is not the true count and sum."""
    _, page_of_event, cents = _events(generated)
    views = np.bincount(page_of_event, minlength=PAGES)
    spent = np.bincount(page_of_event, weights=cents, minlength=PAGES).astype(np.int64)
    newest: dict[int, tuple[int, int]] = {}
    for page, *shown in zip(
        *(_longs(pages, name).tolist() for name in ("page", "views", "spent")), strict=True
    ):
        newest[page] = (shown[0], shown[1])
    expected = {page: (int(views[page]), int(spent[page])) for page in range(PAGES) if views[page]}
    return sum(newest.get(page) != expected.get(page) for page in newest.keys() | expected.keys())


def _events(generated: int) -> tuple[Longs, Longs, Longs]:
    """User, page and cents of every event, by its number."""
    event = np.arange(generated, dtype=np.int64)
    return (
        event * 48271 % 2147483647 % USERS,
        event * 69621 % 2147483647 % PAGES,
        event * 39373 % 2147483647 % 1000,
    )


def _longs(table: pa.Table, name: str) -> Longs:
    if name not in table.column_names:
        return np.empty(0, np.int64)
    values: Longs = table.column(name).to_numpy().astype(np.int64)
    return values
