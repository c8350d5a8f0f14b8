"""Where the pieces of a table end that the user cuts."""

from __future__ import annotations

from holdfast.connectors.batch import BatchSource
from holdfast.connectors.contract import Json


def test_a_copy_that_lags_behind_is_not_read_from_where_it_ends() -> None:
    """The user's function asked another replica of the server this time."""
    ends: list[Json] = [10, 7, 12]
    source = BatchSource(
        through=lambda after, max_rows: ends.pop(0),
        read=lambda spark, after, through: spark.range(after or 0, through),
        schema="id long",
        unchanging=True,
    )
    reader, after, pieces = source.reader([]), None, []
    while ends:
        piece = reader.next(after, None, 0)
        if piece is not None:
            after = piece.end
            pieces.append((piece.start, piece.end))
    assert pieces == [(None, 10), (10, 12)], "rows 8 to 10 come once"
