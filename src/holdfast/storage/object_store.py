"""Storage in a bucket of S3, Google Cloud Storage or Azure. The only door to obstore.

Put-if-absent is the store's own conditional put, sent once and never repeated by the client underneath: a
repeated one could find its own first try and call it someone else's.

Credentials, region and endpoint come from the environment, by the names that each vendor's own tools use.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import from_url

from holdfast.errors import (
    DefinitionError,
    ObjectMissing,
    RetryableError,
    StorageError,
    StorageRefused,
    UnknownOutcome,
)
from holdfast.storage.contract import Entry, Put, check_name, check_prefix

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

CONNECT_TIMEOUT = timedelta(seconds=5)
REQUEST_TIMEOUT = timedelta(seconds=60)
RETRIES_MAX = 4
RETRY_TIMEOUT = timedelta(seconds=60)
PART_BYTES = 8 << 20
"""Files larger than this are uploaded in parts of this size."""
STREAM_PARTS_AT_ONCE = 3
"""Parts of one stream on their way at a time: each takes memory."""

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_DETAILS = ("ConnectionRefused", "dns error", "Timeout", "BadScheme")
"""What obstore says only in the long form of an error, the telling ones first."""
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
"""What S3 and Google Cloud Storage, and what Azure, say of one that is not there."""
_FAILURES = (BaseError, OSError, ValueError)
_REMEDIES = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION; AWS_ENDPOINT_URL for other stores than AWS",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
_PLAIN_HTTP = {"s3": "AWS_ALLOW_HTTP", "az": "AZURE_ALLOW_HTTP"}
"""Variables that allow it. Of the library they count only where no options are given."""


class ObjectStorage:
    """Objects below the path of a url, in its bucket, which must exist and support conditional puts."""

    def __init__(self, url: str, *, request_timeout: timedelta = REQUEST_TIMEOUT) -> None:
        self.url = url.rstrip("/")
        self._scheme = urlsplit(self.url).scheme
        options: ClientConfig = {"connect_timeout": CONNECT_TIMEOUT, "timeout": request_timeout}
        endpoint = urlsplit(os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or "")
        on_this_machine = endpoint.scheme == "http" and endpoint.hostname in _LOOPBACK
        allowed = os.environ.get(_PLAIN_HTTP.get(self._scheme, ""), "").lower() in ("true", "1")
        if allowed or (self._scheme == "s3" and on_this_machine):
            options["allow_http"] = True
        self._store = self._connect(options, {"max_retries": RETRIES_MAX, "retry_timeout": RETRY_TIMEOUT})
        self._once = self._connect(options, {"max_retries": 0})

    def __repr__(self) -> str:
        return f"ObjectStorage({self.url!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectStorage) and self.url == other.url

    def __hash__(self) -> int:
        return hash(self.url)

    def put_new(self, name: str, data: bytes) -> Put:
        try:
            obstore.put(self._once, check_name(name), data, mode="create", use_multipart=False)
        except (AlreadyExistsError, PreconditionError) as cause:
            # 409 is Azure's word for "exists", and S3's for "another write was under way, try again".
            if _status(cause) == 409 and self.size(name) is None:
                raise self._refusal(cause, "write", name) from cause
            return Put.EXISTS
        except _FAILURES as cause:
            raise self._write_failure(cause, name) from cause
        return Put.CREATED

    def put(self, name: str, data: bytes) -> None:
        with self._writing(name):
            obstore.put(self._store, check_name(name), data, use_multipart=False)

    def put_file(self, name: str, path: Path) -> None:
        check_name(name)
        if not path.is_file():
            raise StorageError(f"cannot write {self.url}/{name}: there is no file {path} to take it from")
        with self._writing(name):
            obstore.put(self._store, name, path, chunk_size=PART_BYTES)
        path.unlink()

    def put_stream(self, name: str, parts: Callable[[], Iterator[bytes]]) -> None:
        # Not given to `obstore.put` as it is: that would call `parts` within its event loop, where nothing
        # can be read from a bucket.
        check_name(name)
        with self._writing(name):
            upload = obstore.open_writer(
                self._store, name, buffer_size=PART_BYTES, max_concurrency=STREAM_PARTS_AT_ONCE
            )
        for part in parts():
            with self._writing(name):
                upload.write(part)
        # Without this the upload never shows, so an error of `parts` leaves nothing.
        with self._writing(name):
            upload.close()

    @contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        try:
            yield
        except _FAILURES as cause:
            raise self._write_failure(cause, name) from cause

    def get(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        check_name(name)
        if length == 0:
            self._require(name)
            return b""
        try:
            if length is not None:
                return bytes(obstore.get_range(self._store, name, start=offset, length=length))
            if offset:
                return bytes(obstore.get(self._store, name, options={"range": {"offset": offset}}).bytes())
            return bytes(obstore.get(self._store, name).bytes())
        except FileNotFoundError as cause:
            if _lacks_bucket(cause):
                raise self._refusal(cause, "read", name) from cause
            raise self._missing(name) from cause
        except _FAILURES as cause:
            if self._require(name) <= offset:
                return b""
            raise self._refusal(cause, "read", name) from cause

    def size(self, name: str) -> int | None:
        found = self.entry(name)
        return None if found is None else found.size

    def entry(self, name: str) -> Entry | None:
        try:
            found = obstore.head(self._store, check_name(name))
            return Entry(name, found["size"], found["e_tag"] or "")
        except FileNotFoundError:
            return None
        except _FAILURES as cause:
            raise self._refusal(cause, "read", name) from cause

    def list(self, prefix: str) -> list[Entry]:
        directory = check_prefix(prefix).rpartition("/")[0]
        try:
            found = obstore.list(self._store, prefix=directory or None).collect()
        except _FAILURES as cause:
            raise self._refusal(cause, "list", prefix) from cause
        return sorted(Entry(one["path"], one["size"]) for one in found if one["path"].startswith(prefix))

    def delete(self, names: Iterable[str]) -> None:
        doomed = [check_name(name) for name in names]
        try:
            obstore.delete(self._store, doomed)
        except FileNotFoundError as cause:
            if _lacks_bucket(cause):
                raise self._refusal(cause, "delete", doomed[0]) from cause
        except _FAILURES as cause:
            raise self._refusal(cause, "delete", doomed[0]) from cause

    def local_path(self, name: str) -> Path | None:
        check_name(name)
        return None

    def _connect(self, options: ClientConfig, retries: RetryConfig) -> ObjectStore:
        try:
            return from_url(self.url, client_options=options, retry_config=retries)
        except _FAILURES as cause:
            raise DefinitionError(
                f"{self.url!r} cannot be used as storage: {_reason(cause)}; "
                f"write {self._scheme}://bucket/path and set {_REMEDIES[self._scheme]}"
            ) from cause

    def _require(self, name: str) -> int:
        size = self.size(name)
        if size is None:
            raise self._missing(name)
        return size

    def _missing(self, name: str) -> ObjectMissing:
        return ObjectMissing(f"object {name!r} is not in {self.url}; restore it from a copy, or rewind")

    def _write_failure(self, cause: Exception, name: str) -> RetryableError:
        """StorageError only where the one request sent surely wrote nothing; else the outcome is unknown."""
        text, status = str(cause), _status(cause)
        never_sent = "kind: Connect," in text or "kind: Builder," in text or "RetryError" not in text
        refused = status is not None and 400 <= status < 500 and status != 408
        if (never_sent or refused) and not re.search(r"\bretries: [1-9]", text):
            return self._refusal(cause, "write", name)
        return UnknownOutcome(
            f"no answer whether {self.url}/{name} was written: {_reason(cause)}; "
            "read it back, or write it again"
        )

    def _refusal(self, cause: Exception, verb: str, name: str) -> StorageError:
        text, status, kind = str(cause), _status(cause), StorageError
        if status in (401, 403):
            kind = StorageRefused
            remedy = f"check the credentials and their rights on the bucket ({_REMEDIES[self._scheme]})"
        elif _lacks_bucket(cause):
            kind = StorageRefused
            remedy = "create the bucket, or correct the url"
        elif "BadScheme" in text:
            kind = StorageRefused
            allowed = _PLAIN_HTTP.get(self._scheme, "")
            remedy = "use https" + (f", or set {allowed}=true if the network is trusted" if allowed else "")
        elif status == 409:
            remedy = "another write of it was under way; try again"
        else:
            remedy = f"check the network and the endpoint ({_REMEDIES[self._scheme]})"
        return kind(f"cannot {verb} {self.url}/{name}: {_reason(cause)}; {remedy}")


def _lacks_bucket(cause: Exception) -> bool:
    return any(code in str(cause) for code in _NO_BUCKET)


def _status(cause: Exception) -> int | None:
    """The HTTP status, which obstore gives only within its text."""
    match = re.search(r"\bstatus: (\d{3})\b", str(cause))
    return int(match[1]) if match else None


def _reason(cause: Exception) -> str:
    """The one line of an obstore error that a reader needs."""
    text = str(cause)
    first = text.partition("\n")[0]
    detail = next((one for one in _DETAILS if one in text), None)
    return f"{first[:300]} ({detail})" if detail else first[:300]
