"""Why a row does not fit its schema, in words. Runs in Spark tasks, over such rows only.

Spark only says that a row does not fit. Which value it was is told by comparing what the row says with the
columns that Spark left empty; where that tells nothing, the reason is the schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

VALUE_CHARS_MAX = 80
_WORDS = {"bigint": "long", "smallint": "short", "tinyint": "byte"}


def json_misfit(row: str, empty: Sequence[str], types: Mapping[str, str]) -> str:
    """Why a row of JSON does not fit. `empty`: declared columns that Spark left empty; `types`: Spark's, by
    declared column."""
    try:
        value = json.loads(row)
    except json.JSONDecodeError as error:
        return f"it is no JSON: {error.msg} at character {error.pos + 1}"
    except (ValueError, RecursionError) as error:
        return f"it cannot be read as JSON: {error}"
    for each in value if isinstance(value, list) else [value]:
        if not isinstance(each, dict):
            return "it is JSON, but no object"
        for name in empty:
            if each.get(name) is not None:
                return value_misfit(name, json.dumps(each[name], ensure_ascii=False), types)
    return schema_misfit(types)


def missing_value(name: str) -> str:
    """Why a row does not fit that has no value in a column that must have one."""
    return f"column {name!r} is declared not null and has no value"


def value_misfit(name: str, shown: str, types: Mapping[str, str]) -> str:
    """One value is to blame."""
    if len(shown) > VALUE_CHARS_MAX:
        shown = f"{shown[:VALUE_CHARS_MAX]}..."
    return f"column {name!r} is declared {_declared(types[name])}, found {shown}"


def schema_misfit(types: Mapping[str, str]) -> str:
    """It is not known which value is to blame."""
    declared = ", ".join(f"{name} {_declared(type)}" for name, type in types.items())
    return f"a value does not fit the schema '{declared}'"


def _declared(type: str) -> str:
    """A type of Spark's in the words of schemas; a field of that name stays as it is."""
    return re.sub(r"(?<![^<:,])(bigint|smallint|tinyint)(?![^>,])", lambda found: _WORDS[found[0]], type)
