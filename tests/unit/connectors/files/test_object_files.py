"""Files of a bucket as tasks read them, on objects in memory: every row once, however a file is cut."""

from __future__ import annotations

import bz2
import gzip
import io
import zlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.connectors.files import object_files
from holdfast.connectors.files.extents import PIECE_BYTES, Extent, dealt, pieces
from holdfast.connectors.files.object_files import TextForm, elements, parquet_rows, splittable, text_rows
from holdfast.errors import InputVanished
from tests.unit.checkpoint.kept import MemoryStorage

URL = "s3://bucket/in"


class Bucket(MemoryStorage):
    def __init__(self, **objects: bytes) -> None:
        super().__init__()
        self.objects.update(objects)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Bucket:
    bucket = Bucket()
    monkeypatch.setattr(object_files, "open_storage", lambda url: bucket)
    return bucket


def first_task() -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"id": [0]})


def read(bucket: Bucket, name: str, data: bytes, form: TextForm = TextForm()) -> list[Any]:  # noqa: B008
    bucket.objects[name] = data
    table = pa.Table.from_batches(text_rows(URL, form, [[Extent(name)]], first_task()))
    if form.placed:
        return list(zip(table["line"].to_pylist(), table["value"].to_pylist(), strict=True))
    return table["value"].to_pylist()


@given(st.binary(max_size=60).map(lambda data: data.replace(b"\x00", b"\n")), st.integers(1, 9))
def test_every_line_is_in_one_piece_of_a_file(data: bytes, piece: int) -> None:
    bucket, form = Bucket(a=data), TextForm()
    whole = list(object_files._values(bucket, Extent("a"), form))
    cut = [
        value
        for extent in pieces("a", len(data), piece)
        for _, value in object_files._values(bucket, extent, form)
    ]
    assert cut == [value for _, value in whole]


def test_lines_end_as_on_any_system_and_blank_ones_are_none(bucket: Bucket) -> None:
    text = b"\xef\xbb\xbfa\r\nb\rc\n\n \nd"
    assert read(bucket, "x", text) == [b"a", b"b", b"c", b"d"]
    assert read(bucket, "x", text, TextForm(placed=True)) == [(1, b"a"), (2, b"b"), (3, b"c"), (6, b"d")]
    assert len(read(bucket, "x", text, TextForm(placed=True, blank=True))) == 6


def test_headers_and_comments_are_no_rows(bucket: Bucket) -> None:
    form = TextForm(header=True, comment=b"#")
    assert read(bucket, "x.csv", b"# made today\nuser,n\na,1\n#\nuser,n\n", form) == [b"a,1", b"user,n"]


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("a.gz", gzip.compress),
        ("a.bz2", bz2.compress),
        ("a.deflate", zlib.compress),
        ("a.zst", lambda data: bytes(pa.compress(data, codec="zstd"))),
    ],
)
def test_compressed_files_are_read_whole(bucket: Bucket, name: str, pack: Any) -> None:
    assert read(bucket, name, pack(b"one\ntwo\n")) == [b"one", b"two"]
    assert not splittable(name, TextForm())


def test_a_file_in_a_form_of_hadoops_own_is_refused_by_name(bucket: Bucket) -> None:
    with pytest.raises(ValueError, match=r"'a.json.snappy' of source path s3://bucket/in cannot be read: .*"):
        read(bucket, "a.json.snappy", b"x")


def test_a_file_that_ends_too_soon_is_refused_by_name(bucket: Bucket) -> None:
    with pytest.raises(ValueError, match=r"'a.gz' .* cannot be read: .*; correct the file, or give it up"):
        read(bucket, "a.gz", gzip.compress(b"one\n" * 1000)[:-9])


def test_a_file_that_is_gone_is_input_that_vanished(bucket: Bucket) -> None:
    with pytest.raises(InputVanished, match=r"'a' .* is gone"):
        list(text_rows(URL, TextForm(), [[Extent("a")]], first_task()))


def test_other_encodings_and_separators(bucket: Bucket) -> None:
    assert read(bucket, "x", "ö\nü".encode("utf-16"), TextForm(encoding="UTF-16")) == [
        b"\xc3\xb6",
        b"\xc3\xbc",
    ]
    assert read(bucket, "x", b"a\nb|c|", TextForm(separator=b"|")) == [b"a\nb", b"c"]
    assert not TextForm(separator=b"|").cuts
    assert not TextForm(encoding="UTF-16").cuts


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b'[{"a": 1.10}, {"b": [1, 2]} ]\n', [b'{"a": 1.10}', b'{"b": [1, 2]}']),
        (b"[]", []),
        (b'[{"a": 1}', [b'[{"a": 1}']),
        (b'[{"a": 1} 2]', [b'[{"a": 1} 2]']),
        (b"[1] 2", [b"[1] 2"]),
        (b"[\xff]", [b"[\xff]"]),
    ],
)
def test_a_json_array_is_its_elements_as_they_are_written(text: bytes, found: list[bytes]) -> None:
    assert elements(text) == found


def test_row_groups_are_read_by_the_piece_in_which_they_begin(bucket: Bucket) -> None:
    out = io.BytesIO()
    table = pa.table({"N": pa.array(range(100), pa.int32()), "other": ["x" * 50] * 100})
    pq.write_table(table, out, row_group_size=10, compression="none", use_dictionary=False)
    bucket.objects["a"] = out.getvalue()
    schema = pa.schema([("n", pa.int64()), ("missing", pa.string())])
    tasks = [list(pieces("a", len(out.getvalue()), 700))]
    assert len(tasks[0]) > 3
    found = pa.Table.from_batches(parquet_rows(URL, schema, None, tasks, first_task()))
    assert found["n"].to_pylist() == list(range(100))
    assert found["missing"].null_count == 100


def test_tasks_have_about_as_much_to_read() -> None:
    sizes = {"big": 3 * PIECE_BYTES, **{f"{n}": 10 for n in range(20)}}
    extents = [piece for name, size in sizes.items() for piece in pieces(name, size)]
    tasks = dealt(extents, sizes)
    assert [extent for task in tasks for extent in task] == extents
    assert len(tasks) == 5
    assert dealt([], {}) == []
