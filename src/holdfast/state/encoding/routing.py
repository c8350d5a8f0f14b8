"""Which key group a key belongs to. Part of the stored format: the same answer in every process, forever.

The hash is Spark's `xxhash64` (XXH64, seed 42, each column's hash the seed of the next, nulls leave it
unchanged) over canonical columns, so that `int 1` and `long 1`, `float 0.5` and `double 0.5` meet in one
group: integers, booleans and dates as bigint, floats as double, decimals as decimal(38, their scale),
timestamps and intervals as microseconds, times as nanoseconds, strings and binary as they are, structs and
arrays by their elements.
Always true: `routing_hash` equals what Spark computes for `routing_expression` (golden vectors in the tests).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from holdfast.errors import DefinitionError
from holdfast.state.encoding.types import is_variant, type_ddl

GROUP_COLUMN = "__hf_group"
KEY_GROUPS_MAX = 1 << 16
SEED = 42

Hashes: TypeAlias = npt.NDArray[np.uint64]

_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)


def routing_expression(schema: pa.Schema, key_columns: Sequence[str]) -> str:
    """Spark SQL text whose value is the routing hash of a row, as a long."""
    parts = [_canonical_sql(quoted(name), schema.field(name).type, name, 0) for name in key_columns]
    return f"xxhash64({', '.join(parts)})"


def group_expression(schema: pa.Schema, key_columns: Sequence[str], key_groups: int) -> str:
    """Spark SQL text whose value is the key group of a row, as an int."""
    _check_group_count(key_groups)
    return f"cast(pmod({routing_expression(schema, key_columns)}, {key_groups}L) as int)"


def routing_hash(columns: Sequence[pa.Array]) -> npt.NDArray[np.int64]:
    """The routing hash of every row of some key columns."""
    hashes = _of_first(columns[0])
    for column in columns[1:]:
        hashes = _chain(column, hashes)
    return hashes.view(np.int64)


def key_groups_of(hashes: npt.NDArray[np.int64], key_groups: int) -> npt.NDArray[np.uint16]:
    """The key group of every hash: the remainder, never negative."""
    _check_group_count(key_groups)
    return np.mod(hashes, np.int64(key_groups)).astype(np.uint16)


def check_hashable(type: pa.DataType, name: str) -> None:
    """Refuse key types that have no routing hash."""
    if pa.types.is_map(type):
        raise DefinitionError(
            f"key column {name!r} holds a map, which has no stable hash; key by its entries instead"
        )
    if is_variant(type):
        raise DefinitionError(
            f"key column {name!r} holds a variant, which has no stable hash; key by a value taken out of it"
        )
    if pa.types.is_struct(type):
        for i in range(type.num_fields):
            check_hashable(type.field(i).type, name)
    elif pa.types.is_list(type):
        check_hashable(type.value_type, name)
    else:
        type_ddl(type)


def _check_group_count(key_groups: int) -> None:
    if not 1 <= key_groups <= KEY_GROUPS_MAX:
        raise DefinitionError(f"key_groups={key_groups} is out of range; choose 1 to {KEY_GROUPS_MAX}")


def quoted(name: str) -> str:
    """A column's name as it stands in Spark SQL text."""
    return "`" + name.replace("`", "``") + "`"


def _canonical_sql(sql: str, type: pa.DataType, name: str, depth: int) -> str:
    check_hashable(type, name)
    if pa.types.is_integer(type) or pa.types.is_boolean(type):
        return f"cast({sql} as bigint)"
    if pa.types.is_floating(type):
        return f"cast({sql} as double)"
    if pa.types.is_decimal(type):
        # Not as a string: Spark writes 0.0000001 as 1E-7 or not, by the session's ANSI setting.
        return f"cast({sql} as decimal(38,{type.scale}))"
    if pa.types.is_date(type):
        return f"cast(unix_date({sql}) as bigint)"
    if pa.types.is_timestamp(type) and type.tz is not None:
        return f"unix_micros({sql})"
    if pa.types.is_struct(type):
        fields = [type.field(i) for i in range(type.num_fields)]
        parts = [_canonical_sql(f"{sql}.{quoted(f.name)}", f.type, name, depth) for f in fields]
        named = [f"'f{i}', {part}" for i, part in enumerate(parts)]
        return f"named_struct({', '.join(named)})"
    if pa.types.is_list(type):
        return (
            f"transform({sql}, x{depth} -> {_canonical_sql(f'x{depth}', type.value_type, name, depth + 1)})"
        )
    return sql


def _of_first(column: pa.Array) -> Hashes:
    """All of one seed: of texts each distinct one is hashed once."""
    seeds = np.full(len(column), SEED, dtype=np.uint64)
    if not (pa.types.is_string(column.type) or pa.types.is_binary(column.type)):
        return _chain(column, seeds)
    coded = column.dictionary_encode(null_encoding="encode")
    distinct = _chain(coded.dictionary, seeds[: len(coded.dictionary)])
    hashes: Hashes = np.take(distinct, coded.indices.to_numpy())
    return hashes


def _chain(column: pa.Array, seeds: Hashes) -> Hashes:
    """Hash every value with its own seed; a null gives the seed back."""
    type = column.type
    if pa.types.is_struct(type):
        for child in column.flatten():
            seeds = _chain(child, seeds)
        return seeds
    if pa.types.is_list(type):
        return _chain_lists(column, seeds)
    if pa.types.is_string(type) or pa.types.is_binary(type) or pa.types.is_decimal(type):
        digest = xxhash.xxh64_intdigest
        texts = _decimal_bytes(column) if pa.types.is_decimal(type) else column.cast(pa.binary()).to_pylist()
        hashed = (
            seed if text is None else digest(text, seed)
            for text, seed in zip(texts, seeds.tolist(), strict=True)
        )
        return np.fromiter(hashed, np.uint64, len(column))
    if pa.types.is_null(type):
        return seeds
    check_hashable(type, "key")
    hashes = _xxh64_of_longs(_as_longs(column), seeds)
    if column.null_count:
        return np.where(column.is_null().to_numpy(zero_copy_only=False), seeds, hashes)
    return hashes


def _chain_lists(column: pa.Array, seeds: Hashes) -> Hashes:
    # All first elements at once, then all second ones, ...: as many passes as the longest list has elements.
    lengths = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
    starts = np.asarray(column.offsets)[:-1]
    hashes = seeds.copy()
    for position in range(int(lengths.max(initial=0))):
        rows = np.flatnonzero(lengths > position)
        hashes[rows] = _chain(column.values.take(pa.array(starts[rows] + position)), hashes[rows])
    return hashes


def _as_longs(column: pa.Array) -> Hashes:
    type = column.type
    if pa.types.is_floating(type):
        numbers = column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
        return canonical_doubles(numbers).view(np.uint64)
    if pa.types.is_date(type):
        column = column.cast(pa.int32())
    longs = column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return np.asarray(longs, dtype=np.int64).view(np.uint64)


def canonical_doubles(numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """One bit pattern for every NaN, and 0.0 for -0.0: what equals as a key is the same key."""
    return np.where(np.isnan(numbers), np.nan, numbers + 0.0)


def _decimal_bytes(column: pa.Array) -> list[bytes | None]:
    """Unscaled values as Java's BigInteger.toByteArray writes them: shortest big-endian two's complement."""
    words = np.frombuffer(column.buffers()[1], dtype=np.uint8)[column.offset * 16 :][
        : len(column) * 16
    ].tobytes()
    valid = column.is_valid().to_pylist()
    result: list[bytes | None] = []
    for i, present in enumerate(valid):
        number = int.from_bytes(words[16 * i : 16 * i + 16], "little", signed=True)
        size = (number if number >= 0 else ~number).bit_length() // 8 + 1
        result.append(number.to_bytes(size, "big", signed=True) if present else None)
    return result


def _rotated(words: Hashes, bits: int) -> Hashes:
    return (words << np.uint64(bits)) | (words >> np.uint64(64 - bits))


def _xxh64_of_longs(longs: Hashes, seeds: Hashes) -> Hashes:
    """XXH64 of eight little-endian bytes each, for all at once."""
    hashes = seeds + _P5 + np.uint64(8)
    hashes ^= _rotated(longs * _P2, 31) * _P1
    hashes = _rotated(hashes, 27) * _P1 + _P4
    hashes ^= hashes >> np.uint64(33)
    hashes *= _P2
    hashes ^= hashes >> np.uint64(29)
    hashes *= _P3
    hashes ^= hashes >> np.uint64(32)
    return hashes
