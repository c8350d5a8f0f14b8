"""A prefix of a bucket as a place with files, on objects in memory."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import MagicMock

import pytest

from holdfast.connectors.files.locations import ObjectDirectory
from holdfast.connectors.files.source import FileReader, FileSource
from holdfast.errors import DefinitionError, InputVanished
from holdfast.storage.contract import Entry
from tests.unit.checkpoint.kept import MemoryStorage

URL = "s3://bucket/in"


class Bucket(MemoryStorage):
    """Objects with a tag by content, as S3 gives them."""

    def entry(self, name: str) -> Entry | None:
        data = self.objects.get(name)
        return None if data is None else Entry(name, len(data), data.hex())


def reader_of(objects: dict[str, bytes]) -> tuple[FileReader, Bucket]:
    bucket = Bucket()
    bucket.objects.update(objects)
    source = FileSource(URL, format="json", schema="n long")
    return FileReader(source, ObjectDirectory(bucket), []), bucket


def test_an_object_replaced_by_one_of_the_same_size_is_found_before_the_commit(no_spark: MagicMock) -> None:
    reader, bucket = reader_of({"a.json": b"one"})
    slice = reader.next(None, None, 0)
    assert slice is not None
    reader.frame(no_spark, slice)
    bucket.put("a.json", b"two")
    with pytest.raises(InputVanished, match="another file of the same size is in its place"):
        reader.verify(slice)


def test_subdirectories_are_said_and_not_read_and_unreadable_names_are_set_aside() -> None:
    reader, _ = reader_of({"a.json": b"", "2024/b.json": b"", "back\\slash.json": b"", "_logs/c.json": b""})
    slice = reader.next(None, None, 0)
    assert slice is not None
    assert slice.notes == ("a.json",)
    deeper, aside = reader.news()
    assert "subdirectories are not read: '2024'; " in deeper
    assert "SET ASIDE" in aside


def test_an_object_that_grows_after_it_was_read_is_said() -> None:
    reader, bucket = reader_of({"a.json": b"one"})
    slice = reader.next(None, None, 0)
    assert slice is not None
    bucket.put("a.json", b"one and more")
    assert reader.next(slice.end, None, 0) is None
    (text,) = reader.news()
    assert "file 'a.json' has grown by 9 bytes" in text


def test_rows_of_several_lines_in_csv_are_refused_in_a_bucket_only(tmp_path: Path) -> None:
    options = {"multiline": "true"}
    with pytest.raises(
        DefinitionError, match=r"s3://bucket/in: CSV rows of several lines .*; write such rows"
    ):
        FileSource(URL, format="csv", schema="n long", options=options)
    for place in (tmp_path, f"file://{tmp_path}"):
        FileSource(place, format="csv", schema="n long", options=options)
