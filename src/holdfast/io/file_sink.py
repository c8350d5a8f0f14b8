"""One file per committed epoch in a directory that any plain reader can read.

`<uid>-<epoch, 12 digits>.<ext>` is put in place at one instant, if absent: a reader of the directory sees
whole committed epochs only, and a second publisher of the same epoch finds the name taken. An epoch without
rows leaves no file, so `published_through` may be lower than the truth; publishing nothing again is harmless.
`_holdfast-<uid>` names the job that owns these files, so that a second job with the same uid is refused and
not taken for the first (plain readers pass over names with `_`, and globs such as `*.json` over this one).
"""

from __future__ import annotations

import base64
import datetime
import decimal
import io
import json
import os
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from holdfast.errors import DefinitionError
from holdfast.io.contract import StagedPart
from holdfast.storage.contract import Put
from holdfast.storage.places import open_storage

if TYPE_CHECKING:
    from holdfast.storage.contract import Storage


class FileSink:
    """Parquet, JSON lines or CSV (with a header) files in `path`: a directory, a mount, or `s3://`, `gs://`,
    `az://`.

    An epoch's file is made in the driver's memory. JSON holds decimals as text, binary as base64, times as
    ISO 8601. CSV cannot hold nested columns.
    """

    exactly_once: Final = True

    def __init__(self, path: str | os.PathLike[str], *, format: str) -> None:
        if format not in _ENCODERS:
            raise DefinitionError(
                f"FileSink cannot write format {format!r}; use one of {', '.join(_ENCODERS)}"
            )
        self.path: Final = os.fspath(path)
        self.format: Final = format

    def publisher(self, job: str, uid: str) -> FilePublisher:
        storage = open_storage(self.path)
        _own(storage, job, uid)
        return FilePublisher(storage, uid, self.format)


class FilePublisher:
    def __init__(self, storage: Storage, uid: str, format: str) -> None:
        self._storage = storage
        self._uid = uid
        self._extension = format
        self._encode = _ENCODERS[format]

    def published_through(self) -> int:
        name = re.compile(rf"{re.escape(self._uid)}-(\d{{12}})\.{self._extension}")
        matches = (name.fullmatch(entry.name) for entry in self._storage.list(""))
        return max((int(match[1]) for match in matches if match), default=0)

    def publish(self, epoch: int, parts: Sequence[StagedPart]) -> None:
        tables = [part.load() for part in sorted(parts, key=lambda part: part.part) if part.rows]
        if not tables:
            return
        # EXISTS means that it is published already: the same committed epoch gives the same rows.
        self._storage.put_new(f"{self._uid}-{epoch:012d}.{self._extension}", self._encode(tables))

    def close(self) -> None:
        pass


def _own(storage: Storage, job: str, uid: str) -> None:
    """Take the directory for this job and uid, or find that it is ours already."""
    marker = f"_holdfast-{uid}"
    if storage.put_new(marker, json.dumps({"job": job, "uid": uid}).encode()) is Put.CREATED:
        return
    owner = json.loads(storage.get(marker))["job"]
    if owner != job:
        raise DefinitionError(
            f"sink {uid!r}: {storage.url} holds output of job {owner!r} under this uid, not of {job!r}; "
            "give the sink another uid or another directory"
        )


def _parquet(tables: Sequence[pa.Table]) -> bytes:
    out = pa.BufferOutputStream()
    with pq.ParquetWriter(out, tables[0].schema, compression="snappy", write_page_checksum=True) as writer:
        for table in tables:
            writer.write_table(table)
    return bytes(out.getvalue())


def _json_lines(tables: Sequence[pa.Table]) -> bytes:
    out = io.StringIO()
    for table in tables:
        for row in table.to_pylist(maps_as_pydicts="strict"):
            out.write(json.dumps(row, default=_plain, ensure_ascii=False))
            out.write("\n")
    return out.getvalue().encode()


def _csv(tables: Sequence[pa.Table]) -> bytes:
    nested = [field.name for field in tables[0].schema if pa.types.is_nested(field.type)]
    if nested:
        raise DefinitionError(f"CSV cannot hold the nested columns {nested}; use format='json' or 'parquet'")
    out = pa.BufferOutputStream()
    with pyarrow.csv.CSVWriter(out, tables[0].schema) as writer:
        for table in tables:
            writer.write_table(table)
    return bytes(out.getvalue())


def _plain(value: Any) -> str:
    if isinstance(value, datetime.date | datetime.datetime):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    return base64.b64encode(value).decode()


_ENCODERS: dict[str, Callable[[Sequence[pa.Table]], bytes]] = {
    "parquet": _parquet,
    "json": _json_lines,
    "csv": _csv,
}
