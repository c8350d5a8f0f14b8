"""FileSource and FileSink on a real S3 server that throttles, loses answers, or refuses."""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial

import boto3  # type: ignore[import-not-found]
import pyarrow as pa
import pytest

from holdfast.connectors.contract import StagedPart
from holdfast.connectors.files.sink import FilePublisher, FileSink
from holdfast.connectors.files.source import FileSource
from holdfast.errors import DefinitionError, Unavailable
from holdfast.storage import urls
from holdfast.storage.object_store import ObjectStorage
from holdfast.storage.urls import open_storage
from holdfast.testing import conformance
from tests.services.faulty_bucket import Fault, FaultyBucket, Request
from tests.services.object_store import BUCKET, ObjectStore


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with ObjectStore() as store:
        yield store


@pytest.fixture
def bucket(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyBucket]:
    with FaultyBucket(store.port) as bucket:
        for name, value in store.environment(bucket.port).items():
            monkeypatch.setenv(name, value)
        # Storages are kept open, each with the endpoint that it was opened with.
        monkeypatch.setattr(urls, "_opened", OrderedDict())
        yield bucket


@pytest.fixture
def place(request: pytest.FixtureRequest) -> str:
    return f"{ObjectStore.url}/{re.sub(r'[^a-z0-9]+', '-', request.node.name.lower())}"


def shown(url: str) -> list[tuple[object, ...]]:
    storage = open_storage(url)
    files = [entry.name for entry in storage.list("") if not entry.name.startswith("_")]
    return [tuple(json.loads(line).values()) for name in files for line in storage.get(name).splitlines()]


def take_away(url: str) -> None:
    storage = open_storage(url)
    storage.delete([entry.name for entry in storage.list("") if not entry.name.startswith("_")])


def part(*numbers: int) -> StagedPart:
    table = pa.table({"n": pa.array(numbers, pa.int64())})
    return StagedPart(0, len(numbers), lambda: table, f"slices of {numbers}")


def test_a_file_sink_in_a_bucket_keeps_what_is_promised(bucket: FaultyBucket, place: str) -> None:
    def at(name: str) -> str:
        return f"{place}/{name}"

    report = conformance.check_sink(
        lambda name: FileSink(at(name), format="json"),
        lambda name: shown(at(name)),
        take_away=lambda name: take_away(at(name)),
    )
    assert not report.not_asked


def test_lanes_of_files_in_a_bucket_keep_what_is_promised(bucket: FaultyBucket, place: str) -> None:
    @contextmanager
    def disturbed(name: str) -> Iterator[None]:
        bucket.decide = lambda request: Fault.LOST if request.method == "PUT" else Fault.NONE
        try:
            yield
        finally:
            bucket.decide = lambda request: Fault.NONE

    report = conformance.check_lanes(
        lambda name: FileSink(f"{place}/{name}", format="json", max_file_rows=2),
        lambda name: shown(f"{place}/{name}"),
        disturbed=disturbed,
    )
    assert set(report.not_asked) <= {"refused-rows", "refused"}


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.THROTTLED])
@pytest.mark.parametrize("strikes", [1, 2, 3])
def test_an_epoch_whose_writing_was_not_answered_is_shown_once(
    bucket: FaultyBucket, place: str, fault: Fault, strikes: int
) -> None:
    """Of the owner's mark, the file and the file's mark: each in turn."""
    puts = 0

    def decide(request: Request) -> Fault:
        nonlocal puts
        puts += request.method == "PUT"
        return fault if request.method == "PUT" and puts == strikes else Fault.NONE

    bucket.decide = decide
    failed = 0
    for _ in range(2):
        try:
            publisher = FileSink(place, format="json").publisher("job", "out")
            publisher.mark()
            publisher.begin(0)
            publisher.publish(1, [part(1, 2)])
            publisher.publish(2, [part(3)])
        except Unavailable:
            failed += 1
    assert failed == 1
    assert [found for found, _ in bucket.struck] == [fault]
    assert sorted(shown(place)) == [(1,), (2,), (3,)]
    mark = FileSink(place, format="json").publisher("job", "out").mark()
    assert mark is not None
    assert mark.epoch == 2


def test_an_answer_that_comes_too_late_is_none(bucket: FaultyBucket, place: str) -> None:
    storage = ObjectStorage(place, request_timeout=timedelta(milliseconds=400))
    publisher = FilePublisher(storage, "job", "out", "json")
    publisher.begin(0)
    bucket.decide = lambda request: Fault.HELD if request.method == "PUT" else Fault.NONE
    with pytest.raises(Unavailable, match="Timeout"):
        publisher.publish(1, [part(1)])
    bucket.decide = lambda request: Fault.NONE
    bucket.release()
    publisher.publish(1, [part(1)])
    assert shown(place) == [(1,)]


def test_listing_and_reading_outlast_a_throttled_bucket(bucket: FaultyBucket, place: str) -> None:
    open_storage(place).put("a.json", b'{"n": 1}\n')
    bucket.decide = lambda request: (
        Fault.THROTTLED if request.method == "GET" and request.number % 2 else Fault.NONE
    )
    reader = FileSource(place, format="json", schema="n long").reader([])
    slice = reader.next(None, 10, 0)
    assert slice is not None
    assert slice.notes == ("a.json",)
    assert Fault.THROTTLED in [fault for fault, _ in bucket.struck]


def test_a_bucket_that_does_not_exist_is_refused_before_spark_starts(
    bucket: FaultyBucket, place: str
) -> None:
    nowhere = place.replace(BUCKET, "no-such-bucket")
    for check in (
        FileSource(nowhere, format="json", schema="n long").check,
        FileSink(nowhere, format="json").check,
    ):
        with pytest.raises(DefinitionError, match=r"no-such-bucket.*create the bucket, or correct the url"):
            check()


def test_a_bucket_that_is_away_is_waited_for(
    bucket: FaultyBucket, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    source = FileSource(place, format="json", schema="n long")
    one, many = FileSink(place, format="json"), FileSink(place, format="json", max_file_rows=2)
    for each in (source, one, many):
        each.check()
    asked: list[Callable[[], object]] = [
        lambda: source.reader([]).next(None, None, 0),
        lambda: one.publisher("job", "out"),
        lambda: many.publisher("job", "out").published_through(),
    ]
    for ask in asked:
        with pytest.raises(Unavailable, match=r"cannot be used now: .*ConnectionRefused"):
            ask()


@pytest.mark.parametrize("max_file_rows", [None, 2])
def test_an_epoch_whose_bucket_throttles_or_loses_answers_is_shown_once_when_it_is_back(
    bucket: FaultyBucket, place: str, max_file_rows: int | None
) -> None:
    publisher = FileSink(place, format="json", max_file_rows=max_file_rows).publisher("job", "out")
    publisher.begin(0)
    table = pa.table({"n": [1, 2, 3]})
    for epoch, fault in enumerate([Fault.THROTTLED, Fault.LOST], 1):
        bucket.decide = lambda request, fault=fault: fault if request.method == "PUT" else Fault.NONE
        with pytest.raises(Unavailable):
            publisher.publish(epoch, [StagedPart(0, 3, lambda: table, f"slices of {epoch}")])
        bucket.decide = lambda request: Fault.NONE
        publisher.publish(epoch, [StagedPart(0, 3, lambda: table, f"slices of {epoch}")])
        assert shown(place) == [(1,), (2,), (3,)] * epoch


def test_wrong_credentials_and_missing_rights_are_told_with_their_remedy(
    monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr(urls, "_opened", OrderedDict())
    with ObjectStore(open_requests=4) as store:
        for name, value in store.environment(store.port).items():
            monkeypatch.setenv(name, value)
        sink, source = FileSink(place, format="json"), FileSource(place, format="json", schema="n long")
        keys = _reader_of(store)
        for check in (sink.check, source.check):
            with pytest.raises(DefinitionError, match="check the credentials and their rights on the bucket"):
                check()
        for name, value in keys.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(urls, "_opened", OrderedDict())
        source.check()
        sink.check()
        told = r"cannot write s3://.*/_holdfast-out: .*check the credentials and their rights"
        with pytest.raises(DefinitionError, match=told):
            sink.publisher("job", "out").begin(0)


def _reader_of(store: ObjectStore) -> dict[str, str]:
    """The keys of a user who may read, and not write. From now on others are refused."""
    iam = boto3.client("iam", endpoint_url=f"http://127.0.0.1:{store.port}", region_name="us-east-1")
    iam.create_user(UserName="reader")
    document = {"Effect": "Allow", "Action": ["s3:ListBucket", "s3:GetObject"], "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [document]})
    iam.put_user_policy(UserName="reader", PolicyName="read", PolicyDocument=policy)
    made = iam.create_access_key(UserName="reader")["AccessKey"]
    return {"AWS_ACCESS_KEY_ID": made["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": made["SecretAccessKey"]}


def test_planning_from_a_bucket_keeps_what_is_promised(bucket: FaultyBucket, place: str) -> None:
    storage = open_storage(place)
    for number in range(6):
        storage.put(f"{number}.json", f'{{"n": {2 * number}}}\n{{"n": {2 * number + 1}}}\n'.encode())
    source = partial(FileSource, place, format="json", schema="n long")
    conformance.check_source(source, max_rows="approximate", rows_in=lambda slice: 2 * len(slice.detail))
