"""What a file system refused, said so that the reader knows what to do."""

from __future__ import annotations

import errno
import os

from holdfast.errors import StorageError, StorageRefused

_FILE_FOR_DIRECTORY = "a file is where a directory is needed, or the reverse"
_WRONG_KIND = (errno.ENOTDIR, errno.EISDIR, errno.EEXIST)
_STAYS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EFBIG, *_WRONG_KIND)
"""What a file system says until a person sees to it."""


def refusal(cause: OSError, verb: str, path: str) -> StorageError:
    """The error to raise when the file system would not `verb` (write, read, list, delete) `path`."""
    what = f"cannot {verb} {path}"
    nothing = ", nothing was written" if verb == "write" else ""
    match cause.errno:
        case errno.ENOSPC | errno.EDQUOT:
            text = f"disk full: {what}{nothing}; free space on its file system, or raise the quota"
        case errno.EFBIG:
            text = f"{what}: larger than the file size limit{nothing}; raise the limit (ulimit -f)"
        case errno.EACCES | errno.EPERM:
            text = f"{what}: no permission{nothing}; give user {os.getuid()} access to it"
        case errno.EROFS:
            text = f"{what}: the file system is read-only{nothing}; mount it writable"
        case errno.ENOTDIR | errno.EISDIR | errno.EEXIST:
            text = f"{what}: {_FILE_FOR_DIRECTORY}{nothing}; move it away, or choose another place"
        case _:
            text = f"{what}: {cause.strerror}{nothing}; check the file system"
    return (StorageRefused if cause.errno in _STAYS else StorageError)(text)
