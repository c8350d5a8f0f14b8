"""Spark SQL type strings as Arrow types, and back.

Always true: `parse_type(type_ddl(t)) == t` for every type that `parse_type` can give.
A variant is opaque: the two byte strings that Spark hands over, marked so that it is written as `variant`.
Never here: types that Spark has and does not hand to Python (year-month and calendar intervals, geometry), or
that have no stable hash or order (collated strings): refused by name, with a remedy.
"""

from __future__ import annotations

import re
from typing import NoReturn

import pyarrow as pa

from holdfast.errors import DefinitionError

DECIMAL_DIGITS_MAX = 38
NESTING_MAX = 32

TIMESTAMP = pa.timestamp("us", tz="UTC")
UTC_NAMES = ("UTC", "Etc/UTC", "GMT")
"""What the time zone of a Spark session may be called where it is UTC."""
TIMESTAMP_NTZ = pa.timestamp("us")
DAY_TIME = pa.duration("us")
TIME = pa.time64("ns")
_VARIANT_MARK = {b"variant": b"true"}
VARIANT = pa.struct(
    [
        pa.field("value", pa.binary()),
        pa.field("metadata", pa.binary(), metadata=_VARIANT_MARK),
    ]
)
"""As Spark hands variants to Python. Arrow counts it equal to the same struct without the mark."""

_NAMED: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "tinyint": pa.int8(),
    "short": pa.int16(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP,
    "timestamp_ltz": TIMESTAMP,
    "timestamp_ntz": TIMESTAMP_NTZ,
    "void": pa.null(),
    "variant": VARIANT,
}

_DDL: dict[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    TIMESTAMP: "timestamp",
    TIMESTAMP_NTZ: "timestamp_ntz",
    DAY_TIME: "interval day to second",
    TIME: "time(6)",
    pa.null(): "void",
}

_DAY_TIME_UNITS = ("day", "hour", "minute", "second")
_TIME_DIGITS_MAX = 9
_NOT_HANDED_OVER = {
    "geometry": "keep it as binary, with st_asbinary",
    "geography": "keep it as binary, with st_asbinary",
}

_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|(\w+)|([<>(),:]))", re.UNICODE)
_PLAIN_NAME = re.compile(r"\w+", re.UNICODE)


def parse_type(ddl: str) -> pa.DataType:
    """Read one Spark SQL type, such as `struct<a:int,b:array<string>>`."""
    parser = _Parser(ddl)
    found = parser.type(NESTING_MAX)
    parser.end()
    return found


def parse_schema(ddl: str) -> pa.Schema:
    """Read a list of columns, such as `user string, total long not null`."""
    parser = _Parser(ddl)
    fields = [parser.field(NESTING_MAX)]
    while parser.take(","):
        fields.append(parser.field(NESTING_MAX))
    parser.end()
    parser.refuse_duplicates(fields)
    return pa.schema(fields)


def in_zone(type: pa.DataType, zone: str) -> pa.DataType:
    """The same type: the time zone of a timestamp says how it is shown and not what it is."""
    if pa.types.is_timestamp(type) and type.tz is not None:
        return pa.timestamp(type.unit, zone)
    if pa.types.is_struct(type):
        return pa.struct([_field_in(field, zone) for field in type])
    if pa.types.is_map(type):
        return pa.map_(_field_in(type.key_field, zone), _field_in(type.item_field, zone))
    return pa.list_(_field_in(type.value_field, zone)) if pa.types.is_list(type) else type


def _field_in(field: pa.Field, zone: str) -> pa.Field:
    return field.with_type(in_zone(field.type, zone))


def relaxed(type: pa.DataType) -> pa.DataType:
    """The type with every field nullable: what `not null` says of a column says nothing of stored state."""
    if is_variant(type):
        return type
    if pa.types.is_struct(type):
        return pa.struct([pa.field(child.name, relaxed(child.type)) for child in type])
    if pa.types.is_list(type):
        return pa.list_(relaxed(type.value_type))
    if pa.types.is_map(type):
        return pa.map_(relaxed(type.key_type), relaxed(type.item_type))
    return type


def is_variant(type: pa.DataType) -> bool:
    """Whether a struct is what Spark hands over for a variant."""
    return bool(type == VARIANT and type.field(1).metadata == _VARIANT_MARK)


def type_ddl(type: pa.DataType) -> str:
    """Write a type so that `parse_type` reads it back."""
    if is_variant(type):
        return "variant"
    if (known := _DDL.get(type)) is not None:
        return known
    if pa.types.is_decimal128(type):
        return f"decimal({type.precision},{type.scale})"
    if pa.types.is_list(type):
        return f"array<{type_ddl(type.value_type)}>"
    if pa.types.is_map(type):
        return f"map<{type_ddl(type.key_type)},{type_ddl(type.item_type)}>"
    if pa.types.is_struct(type):
        return f"struct<{','.join(_field_ddl(type.field(i), ':') for i in range(type.num_fields))}>"
    raise DefinitionError(
        f"state cannot hold the Arrow type {type}; declare one of {', '.join(sorted(_NAMED))}, ..."
    )


def schema_ddl(schema: pa.Schema) -> str:
    """Write a schema so that `parse_schema` reads it back."""
    return ", ".join(_field_ddl(field, " ") for field in schema)


def frame_ddl(schema: pa.Schema) -> str:
    """The columns of a schema for Spark: every name quoted, every column nullable."""
    return ", ".join(f"`{field.name}` {type_ddl(field.type)}" for field in schema)


def _field_ddl(field: pa.Field, separator: str) -> str:
    name = field.name if _PLAIN_NAME.fullmatch(field.name) else "`" + field.name.replace("`", "``") + "`"
    return f"{name}{separator}{type_ddl(field.type)}{'' if field.nullable else ' not null'}"


class _Parser:
    """Recursive descent over the tokens of one text; every refusal names the place in it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[tuple[str, int]] = []
        self.next = 0
        place = 0
        while text[place:].strip():
            match = _TOKEN.match(text, place)
            if match is None:
                start = place + len(text[place:]) - len(text[place:].lstrip())
                self.refuse(start, f"{text[start]!r} is not expected")
            self.tokens.append((match[0].strip(), match.start(match.lastindex or 0)))
            place = match.end()

    def refuse(self, place: int, problem: str) -> NoReturn:
        raise DefinitionError(
            f"cannot read the type {self.text!r}: {problem} at character {place + 1}; "
            "write Spark SQL types, such as 'long' or 'struct<a:int,b:string>'"
        )

    def peek(self) -> tuple[str, int]:
        return self.tokens[self.next] if self.next < len(self.tokens) else ("", len(self.text))

    def take(self, wanted: str) -> bool:
        if self.peek()[0].lower() != wanted:
            return False
        self.next += 1
        return True

    def expect(self, wanted: str) -> None:
        if not self.take(wanted):
            self.refuse_next(f"{wanted!r} expected")

    def refuse_next(self, problem: str) -> NoReturn:
        token, place = self.peek()
        self.refuse(place, f"{problem}, found {token!r}" if token else f"{problem}, but the text ends")

    def end(self) -> None:
        if self.next < len(self.tokens):
            self.refuse_next("end of the type expected")

    def number(self) -> int:
        token, _ = self.peek()
        if not token.isdecimal():
            self.refuse_next("a number expected")
        self.next += 1
        return int(token)

    def name(self) -> str:
        token, _ = self.peek()
        if token.startswith("`"):
            self.next += 1
            return token[1:-1].replace("``", "`")
        if not _PLAIN_NAME.fullmatch(token):
            self.refuse_next("a column name expected")
        self.next += 1
        return token

    def field(self, depth: int) -> pa.Field:
        name = self.name()
        self.take(":")
        type = self.type(depth)
        required = self.take("not")
        if required:
            self.expect("null")
        return pa.field(name, type, nullable=not required)

    def refuse_duplicates(self, fields: list[pa.Field]) -> None:
        names = [field.name for field in fields]
        for name in names:
            if names.count(name) > 1:
                self.refuse(self.text.find(name), f"the name {name!r} is used twice")

    def type(self, depth: int) -> pa.DataType:
        token, place = self.peek()
        if depth == 0:
            self.refuse(place, f"types are nested more than {NESTING_MAX} deep")
        self.next += 1
        word = token.lower()
        if word in _NAMED:
            if word == "string" and self.peek()[0].lower() == "collate":
                self.refuse_next(
                    "collated strings have no stable hash or order and are not supported; cast to string"
                )
            return _NAMED[word]
        if word in ("decimal", "dec", "numeric"):
            return self.decimal(place)
        if word in ("varchar", "char"):
            self.expect("(")
            self.number()
            self.expect(")")
            return pa.string()
        if word in ("array", "map", "struct"):
            return self.nested(word, depth - 1)
        if word == "interval":
            return self.interval(place)
        if word == "time":
            return self.time(place)
        if word in _NOT_HANDED_OVER:
            self.refuse(place, f"Spark hands no {word} to Python: {_NOT_HANDED_OVER[word]}")
        self.next -= 1
        self.refuse_next("a type expected")

    def decimal(self, place: int) -> pa.DataType:
        precision, scale = 10, 0
        if self.take("("):
            precision = self.number()
            if self.take(","):
                scale = self.number()
            self.expect(")")
        if not (1 <= precision <= DECIMAL_DIGITS_MAX and scale <= precision):
            self.refuse(
                place, f"decimal({precision},{scale}) is out of range (at most {DECIMAL_DIGITS_MAX} digits)"
            )
        return pa.decimal128(precision, scale)

    def interval(self, place: int) -> pa.DataType:
        """A day-time interval, of whichever units: all are microseconds."""
        first = self.peek()[0].lower()
        if first not in _DAY_TIME_UNITS:
            kind = "year-month" if first in ("year", "month") else "calendar"
            self.refuse(place, f"Spark hands no {kind} interval to Python: keep a number of months or days")
        self.next += 1
        if self.take("to"):
            last = self.peek()[0].lower()
            if last not in _DAY_TIME_UNITS[_DAY_TIME_UNITS.index(first) + 1 :]:
                self.refuse_next(f"a smaller unit than {first!r} expected")
            self.next += 1
        return DAY_TIME

    def time(self, place: int) -> pa.DataType:
        if self.take("("):
            digits = self.number()
            self.expect(")")
            if digits > _TIME_DIGITS_MAX:
                self.refuse(place, f"time({digits}) is out of range (at most {_TIME_DIGITS_MAX} digits)")
        return TIME

    def nested(self, word: str, depth: int) -> pa.DataType:
        self.expect("<")
        if word == "array":
            found = pa.list_(self.type(depth))
        elif word == "map":
            key = self.type(depth)
            self.expect(",")
            found = pa.map_(key, self.type(depth))
        else:
            fields = [self.field(depth)]
            while self.take(","):
                fields.append(self.field(depth))
            self.refuse_duplicates(fields)
            found = pa.struct(fields)
        self.expect(">")
        return found
