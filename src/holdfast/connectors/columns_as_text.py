"""Arrow columns as columns of text: JSON, or plain as in a cell of a CSV file.

Always true: every value that a column may hold has a text, also those that Python's objects cannot hold
(timestamps of the year 294247, intervals of 10 million days, text that is not UTF-8). Columns are taken
whole, value by value only where Arrow has no kernel (base64, text that needs escapes).
Never here: which types a file format takes (see connectors.files.sink_formats).
"""

from __future__ import annotations

import binascii
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import DefinitionError

TEXT = pa.large_string()
"""With 64 bits for lengths: the text of a batch may be longer than 2 GiB."""

_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097
"""The Gregorian calendar repeats, to the day."""
_SECOND_US = 1_000_000
_DAY_US = 86_400 * _SECOND_US
_NEEDS_ESCAPE = '["\\\\\x00-\x1f]'

Integers = npt.NDArray[np.int64]


def json_texts(column: pa.Array) -> pa.Array:
    """Each value as JSON, null as `null`. Strict readers accept it: NaN and the infinities are text."""
    type = column.type
    if pa.types.is_struct(type):
        text = json_objects([field.name for field in type], [column.field(i) for i in range(len(type))])
    elif pa.types.is_map(type):
        text = _maps(column)
    elif pa.types.is_list(type):
        offsets, (items,) = _extents(column, column.values)
        text = joined("[", _each_joined(offsets, json_texts(items)), "]")
    elif pa.types.is_floating(type):
        text = plain_texts(column)
        text = pc.if_else(pc.is_finite(column), text, joined('"', text, '"'))
    elif pa.types.is_integer(type) or pa.types.is_boolean(type) or pa.types.is_null(type):
        text = plain_texts(column)
    else:
        text = _quoted(column)
    return pc.if_else(column.is_valid(), text, pa.scalar("null", TEXT))


def json_objects(names: Sequence[str], columns: Sequence[pa.Array]) -> pa.Array:
    """One JSON object per row of these columns."""
    pieces: list[Any] = []
    for name, column in zip(names, columns, strict=True):
        pieces += [f"{',' if pieces else '{'}{json.dumps(name, ensure_ascii=False)}:", json_texts(column)]
    return joined(*pieces, "}")


def json_rows(table: pa.Table) -> Iterator[bytes]:
    """Each row as a JSON object in UTF-8, without a line break."""
    for batch in table.to_batches(max_chunksize=10_000):
        yield from json_objects(batch.schema.names, batch.columns).cast(pa.large_binary()).to_pylist()


def check_json_names(schema: pa.Schema) -> None:
    """DefinitionError: rows of these columns are no JSON objects that could be read again."""
    names = schema.names
    if not names or len(set(names)) < len(names):
        raise DefinitionError(
            f"rows with the columns {names} cannot be told as JSON; have one column at least, each name once"
        )


def plain_texts(column: pa.Array) -> pa.Array:
    """Each value as text without quotes, nested ones as JSON; null stays null."""
    type = column.type
    if pa.types.is_nested(type):
        return pc.if_else(column.is_valid(), json_texts(column), pa.scalar(None, TEXT))
    if pa.types.is_string(type) or pa.types.is_large_string(type):
        return utf8(column).cast(TEXT)
    if pa.types.is_binary(type) or pa.types.is_large_binary(type):
        encoded = [
            None if value is None else binascii.b2a_base64(value, newline=False)
            for value in column.to_pylist()
        ]
        return pa.array(encoded, pa.large_binary()).cast(TEXT)
    if pa.types.is_floating(type):
        return _floats(column)
    if pa.types.is_decimal(type):
        return _decimals(column)
    if pa.types.is_temporal(type):
        return pc.if_else(column.is_valid(), _times(column), pa.scalar(None, TEXT))
    return column.cast(TEXT)


def _decimals(column: pa.Array) -> pa.Array:
    """Digits with a point and no exponent, which Arrow's own conversion uses for small numbers."""
    scale = column.type.scale
    if scale <= 0:
        return column.cast(TEXT)
    # The same bytes, read as whole numbers.
    whole = pa.Array.from_buffers(
        pa.decimal128(38, 0), len(column), column.buffers(), offset=column.offset
    ).cast(TEXT)
    digits = pc.utf8_lpad(pc.utf8_ltrim(whole, "-"), scale + 1, "0")
    sign = pc.if_else(pc.starts_with(whole, "-"), pa.scalar("-", TEXT), pa.scalar("", TEXT))
    before, after = pc.utf8_slice_codeunits(digits, 0, -scale), pc.utf8_slice_codeunits(digits, -scale)
    return joined(sign, before, ".", after)


def utf8(column: pa.Array) -> pa.Array:
    """A column of text that is UTF-8 throughout: bytes that are not become U+FFFD, as in Spark's own
    conversions."""
    raw = column.cast(pa.large_binary())
    try:
        raw.cast(TEXT)
    except pa.ArrowInvalid:
        texts = [None if value is None else value.decode(errors="replace") for value in raw.to_pylist()]
        return pa.array(texts, column.type)
    return column


def joined(*pieces: pa.Array | str) -> pa.Array:
    """The pieces of each row end to end; a str is the same in all rows."""
    parts = [pa.scalar(piece, TEXT) if isinstance(piece, str) else piece for piece in pieces]
    return pc.binary_join_element_wise(*parts, pa.scalar("", TEXT))


def _quoted(column: pa.Array) -> pa.Array:
    """Each value as a JSON string; null stays null."""
    text = plain_texts(column)
    quoted = joined('"', text, '"')
    special = pc.fill_null(pc.match_substring_regex(text, _NEEDS_ESCAPE), False)
    if not pc.any(special).as_py():
        return quoted
    escaped = [json.dumps(value, ensure_ascii=False) for value in text.filter(special).to_pylist()]
    return pc.replace_with_mask(quoted, special, pa.array(escaped, TEXT))


def _maps(column: pa.Array) -> pa.Array:
    """Objects, or arrays of key and value where keys are nested and cannot be names."""
    offsets, (keys, values) = _extents(column, column.keys, column.items)
    if pa.types.is_nested(keys.type):
        entries = json_objects(("key", "value"), (keys, values))
        return joined("[", _each_joined(offsets, entries), "]")
    names = _quoted(keys)
    offsets, kept = _last_of_each(offsets, names)
    entries = joined(names.take(kept), ":", json_texts(values).take(kept))
    return joined("{", _each_joined(offsets, entries), "}")


def _extents(column: pa.Array, *children: pa.Array) -> tuple[Integers, list[pa.Array]]:
    """Where the items of each list begin and end, and the items: those of this slice, from zero."""
    offsets = column.offsets.to_numpy().astype(np.int64)
    first, end = offsets[0], offsets[-1]
    return offsets - first, [child.slice(first, end - first) for child in children]


def _each_joined(offsets: Integers, texts: pa.Array) -> pa.Array:
    lists = pa.LargeListArray.from_arrays(pa.array(offsets), texts)
    return pc.binary_join(lists, pa.scalar(",", TEXT))


def _last_of_each(offsets: Integers, names: pa.Array) -> tuple[Integers, pa.Array]:
    """Which entries count, and where each map's begin and end then: the last of those with one name."""
    maps = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    codes = names.dictionary_encode().indices.to_numpy().astype(np.int64)
    entries = maps * (len(names) + 1) + codes
    _, from_behind = np.unique(entries[::-1], return_index=True)
    kept = np.sort(len(entries) - 1 - from_behind)
    counts = np.bincount(maps[kept], minlength=len(offsets) - 1)
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int64), pa.array(kept, pa.int64())


def _floats(column: pa.Array) -> pa.Array:
    """The shortest text that gives back the same number, and not that of an integer."""
    text = column.cast(TEXT)
    whole = pc.match_substring_regex(text, "^-?[0-9]+$")
    text = pc.if_else(whole, joined(text, ".0"), text)
    for shown, name in (("nan", "NaN"), ("inf", "Infinity"), ("-inf", "-Infinity")):
        text = pc.if_else(pc.equal(text, pa.scalar(shown, TEXT)), pa.scalar(name, TEXT), text)
    return text


def _times(column: pa.Array) -> pa.Array:
    """Dates, timestamps, times of day and intervals as ISO 8601; any text where null."""
    type = column.type
    if pa.types.is_time(type):
        text = pc.replace_substring_regex(column.cast(TEXT), r"\.0+$", "")
        return pc.replace_substring_regex(text, r"(\.[0-9]{6})000$", r"\1")
    if pa.types.is_date(type):
        days = column.cast(pa.int32()).fill_null(0).to_numpy().astype(np.int64)
        cycles, rest = np.divmod(days, _CYCLE_DAYS)
        return _in_its_year(pa.array(rest.astype(np.int32)).cast(pa.date32()).cast(TEXT), cycles)
    micros = column.cast(pa.int64()).fill_null(0).to_numpy()
    if pa.types.is_duration(type):
        return _intervals(micros)
    cycles, rest = np.divmod(micros, _CYCLE_DAYS * _DAY_US)
    text = pa.array(rest).cast(pa.timestamp("us")).cast(TEXT)
    text = pc.utf8_replace_slice(text, 10, 11, "T")
    text = pc.if_else(pa.array(rest % _SECOND_US == 0), pc.utf8_slice_codeunits(text, 0, 19), text)
    return joined(_in_its_year(text, cycles), "+00:00" if type.tz is not None else "")


def _in_its_year(text: pa.Array, cycles: Integers) -> pa.Array:
    """Texts that begin with a year of four digits, moved by so many cycles of the calendar."""
    if not cycles.any():
        return text
    years = pc.utf8_slice_codeunits(text, 0, 4).cast(pa.int64()).to_numpy() + cycles * _CYCLE_YEARS
    digits = pc.utf8_lpad(pa.array(np.abs(years)).cast(TEXT), 4, "0")
    signs = pa.array(np.where(years < 0, "-", np.where(years > 9999, "+", "")), TEXT)
    return joined(signs, digits, pc.utf8_slice_codeunits(text, 4))


def _intervals(micros: Integers) -> pa.Array:
    # The smallest one has no positive counterpart in 64 bits; its bits, read without a sign, are right.
    size = np.abs(micros).view(np.uint64)
    seconds, fraction = np.divmod(size, np.uint64(_SECOND_US))
    minutes, seconds = np.divmod(seconds, np.uint64(60))
    hours, minutes = np.divmod(minutes, np.uint64(60))
    days, hours = np.divmod(hours, np.uint64(24))
    digits = joined(".", pc.utf8_lpad(pa.array(fraction).cast(TEXT), 6, "0"))
    sign = pa.array(np.where(micros < 0, "-P", "P"), TEXT)
    days, hours, minutes, seconds = (pa.array(n).cast(TEXT) for n in (days, hours, minutes, seconds))
    ending = pc.if_else(pa.array(fraction == 0), pa.scalar("", TEXT), digits)
    return joined(sign, days, "DT", hours, "H", minutes, "M", seconds, ending, "S")
