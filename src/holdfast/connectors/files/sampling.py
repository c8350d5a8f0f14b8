"""Which columns a file has, from a glance at it: its CSV header, its Parquet footer, its first JSON rows.

Always true: what cannot be told is None, never a guess. JSON rows beyond the glance may have further columns.
Never here: reading a file whole.
"""

from __future__ import annotations

import bz2
import csv
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa
import pyarrow.parquet as pq

SAMPLE_BYTES = 64 * 1024
JSON_ROWS_MAX = 20
"""How many rows of a JSON file are looked at for columns."""
_UNREADABLE = (".deflate", ".snappy", ".lz4", ".zst", ".zstd", ".lzo")
"""Names of compressed files into which only Spark can look."""


def option(options: Mapping[str, str], *names: str, default: str = "") -> str:
    """An option of Spark's reader, whose names know no case."""
    given = {key.lower(): value for key, value in options.items()}
    return next((given[name.lower()] for name in names if name.lower() in given), default)


def has_header(format: str, options: Mapping[str, str]) -> bool:
    return format == "csv" and option(options, "header").lower() == "true"


def columns_in(format: str, options: Mapping[str, str], name: str, sample: bytes) -> tuple[str, ...] | None:
    """The columns of a file, in its order, from its first bytes (Parquet: its last). None: not to be told."""
    if format == "parquet":
        return _footer(sample)
    if format == "csv" and not has_header(format, options):
        return None
    text = _text(name, sample, option(options, "encoding", "charset", default="UTF-8"))
    if text is None:
        return None
    return _header(text, options) if format == "csv" else _keys(text)


def _footer(sample: bytes) -> tuple[str, ...] | None:
    try:
        return tuple(pq.read_metadata(pa.BufferReader(sample)).schema.to_arrow_schema().names)
    except (pa.ArrowException, OSError):  # a footer longer than that, or no Parquet: Spark will tell
        return None


def _text(name: str, sample: bytes, encoding: str) -> str | None:
    if name.endswith(_UNREADABLE):
        return None
    try:
        if name.endswith(".gz"):
            sample = zlib.decompressobj(wbits=31).decompress(sample, SAMPLE_BYTES)
        elif name.endswith(".bz2"):
            sample = bz2.BZ2Decompressor().decompress(sample, SAMPLE_BYTES)
        return sample.decode(encoding, errors="replace").removeprefix("\ufeff")
    except (zlib.error, OSError, EOFError, LookupError):
        return None


def _header(text: str, options: Mapping[str, str]) -> tuple[str, ...] | None:
    comment = option(options, "comment")
    lines = (
        line
        for line in text.splitlines(keepends=True)
        if line.strip() and not (comment and line.startswith(comment))
    )
    try:
        names = next(records(lines, options), None)
    except csv.Error:
        return None
    known = {name.casefold() for name in names or ()}
    # One that Spark names in its own way is left to it.
    return tuple(names) if names and "" not in known and len(known) == len(names) else None


def records(lines: Iterable[str], options: Mapping[str, str]) -> Iterator[list[str]]:
    """Lines of CSV as their fields, by the options of Spark's reader. csv.Error: they are not like that."""
    quote, escape = option(options, "quote", default='"'), option(options, "escape", default="\\")
    return csv.reader(
        lines,
        delimiter=option(options, "sep", "delimiter", default=",")[:1] or ",",
        quotechar=quote[:1] or None,
        quoting=csv.QUOTE_MINIMAL if quote[:1] else csv.QUOTE_NONE,
        escapechar=None if escape == quote else escape[:1] or None,
    )


def _keys(text: str) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for line in text.splitlines()[:JSON_ROWS_MAX]:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):  # malformed, or cut off by the end of the glance
            continue
        for each in row if isinstance(row, list) else [row]:
            found |= dict.fromkeys(each if isinstance(each, dict) else ())
    return tuple(found)
