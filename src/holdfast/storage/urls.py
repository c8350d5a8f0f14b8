"""From a url to its storage."""

from __future__ import annotations

import importlib
import os
import threading
from collections import OrderedDict
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from holdfast.errors import DefinitionError
from holdfast.storage.contract import Storage
from holdfast.storage.local_directory import LocalStorage

OBJECT_STORE_SCHEMES = ("s3", "gs", "az")
WRAPPER_VARIABLE = "HOLDFAST_STORAGE_WRAPPER"
"""Names `module:function`: every storage that this process opens is passed through it. `holdfast chaos` sets
it, so that storage fails in the driver and in every worker."""

OPEN_MAX = 32
"""Places kept open, the last used ones: each holds files or connections, and a job that takes savepoints
comes by new places for as long as it runs."""

_opened: OrderedDict[str, Storage] = OrderedDict()
_lock = threading.Lock()


def open_storage(url: str) -> Storage:
    """The storage at a plain path, file://, s3://, gs:// or az:// url; the same one as long as it is in use.

    Nothing is created or contacted: a place that cannot be reached shows at its first use.
    """
    if url.strip() and "://" not in url:
        # The same words mean another place after a change of directory.
        url = os.path.abspath(os.path.expanduser(url))
    with _lock:
        storage = _opened.get(url)
        if storage is None:
            storage = _opened[url] = _wrapped(_open(url))
            if len(_opened) > OPEN_MAX:
                # A caller that still uses it keeps it.
                _opened.popitem(last=False)
        _opened.move_to_end(url)
        return storage


def below(url: str, path: str) -> str:
    """The location `path` below `url`, with the same settings."""
    place, mark, settings = url.partition("?") if "://" in url else (url, "", "")
    return f"{place.rstrip('/')}/{path}{mark}{settings}"


def _wrapped(storage: Storage) -> Storage:
    setting = os.environ.get(WRAPPER_VARIABLE)
    if not setting:
        return storage
    module, _, function = setting.partition(":")
    wrapped: Storage = getattr(importlib.import_module(module), function)(storage)
    return wrapped


def _open(url: str) -> Storage:
    scheme, separator, _ = url.partition("://")
    if not separator:
        if not url.strip():
            raise DefinitionError("storage needs a place; give a directory or an s3://, gs:// or az:// url")
        return LocalStorage(Path(url))
    if scheme == "file":
        return _open_file_url(url)
    if scheme in OBJECT_STORE_SCHEMES:
        # Imported here: a worker on local storage should not load the object store client.
        from holdfast.storage.object_store import ObjectStorage

        return ObjectStorage(url)
    raise DefinitionError(
        f"{url!r} is no place for storage; use a directory, or a file://, s3://, gs:// or az:// url"
    )


def _open_file_url(url: str) -> Storage:
    parts = urlsplit(url)
    query = parse_qs(parts.query, keep_blank_values=True)
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/") or parts.fragment:
        raise DefinitionError(f"{url!r} is no place for storage; write file:///absolute/path")
    if query not in ({}, {"fsync": ["off"]}):
        raise DefinitionError(f"{url!r} has an unknown setting; only fsync=off is known, for measurements")
    return LocalStorage(unquote(parts.path), fsync=not query)


def _forget_all() -> None:
    # A forked child has none of its parent's threads: a lock may stay held, a client's event loop be dead.
    global _lock
    _lock = threading.Lock()
    _opened.clear()


os.register_at_fork(after_in_child=_forget_all)
