"""What may be asked of a running job: the verbs and their arguments.

Always true: a verb or an argument that is not known here is refused in one line, by the process that asks and
again by the leader, before anything is touched.
Never here: carrying a verb out (see request_server) or how a request travels (see checkpoint.log.requests).
"""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal, Protocol

import msgspec

from holdfast.errors import DefinitionError
from holdfast.runtime.progress import Progress
from holdfast.storage.typed_json import learn
from holdfast.storage.urls import open_storage

SavepointFormat = Literal["native", "canonical"]


class Arguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the arguments of all verbs."""


class StatusArguments(Arguments, frozen=True, kw_only=True):
    """`status`: where the run stands. `process`: of a set of replicas, the member that is to answer."""

    process: str = ""


class SavepointArguments(Arguments, frozen=True, kw_only=True):
    """`savepoint`: take one at `url`, a place of its own."""

    url: str
    format: SavepointFormat = "native"


class StopArguments(Arguments, frozen=True, kw_only=True):
    """`stop`: end the run in good order, after reading what is at hand (`drain`), with a savepoint."""

    savepoint: str | None = None
    drain: bool = False


class RescaleArguments(Arguments, frozen=True, kw_only=True):
    """`rescale`: go on with another number of shards."""

    parallelism: Annotated[int, msgspec.Meta(ge=1)]


class RetryArguments(Arguments, frozen=True, kw_only=True):
    """`retry`: try a sink again that refuses an epoch, or whose server is waited for."""

    sink: str


VERBS: dict[str, type[Arguments]] = {
    "status": StatusArguments,
    "savepoint": SavepointArguments,
    "stop": StopArguments,
    "rescale": RescaleArguments,
    "retry": RetryArguments,
}


SHORT_VERBS = ("status", "rescale")
"""Carried out at once; the others take as long as they take."""


class Controls(Protocol):
    """What the leader's control thread calls. All methods may be called from any thread.

    DefinitionError and RestoreError mean: refused, nothing was done. Anything else raised means: failed.
    What is returned is told to the asker: the plain fields of a record, a dataclass or a dict.
    """

    def status(self) -> Progress:
        """Where the run stands now. Returns at once."""

    def savepoint(self, url: str, format: str = "native") -> Any:
        """Take a savepoint. Returns when it is complete."""

    def stop(self, savepoint: str | None = None, drain: bool = False) -> Any:
        """End the run in good order. Returns once that is settled; never waits for the end of the run."""

    def rescale(self, parallelism: int) -> Any:
        """Go on with another number of shards from the next epoch on. Returns at once."""

    def retry(self, sink: str) -> int:
        """Try a sink again that waits. Returns when it shows more than before: the newest epoch."""


def checked(verb: str, arguments: Any) -> Arguments:
    """The arguments of a verb as values, defaults filled in. DefinitionError: no such verb or argument."""
    if verb not in VERBS:
        raise DefinitionError(f"there is no verb {verb[:80]!r}; the verbs are {', '.join(VERBS)}")
    try:
        # A number in quotes is a mistake, not a number.
        found = msgspec.convert(arguments, learn(VERBS[verb]), strict=True)
    except msgspec.ValidationError as cause:
        raise DefinitionError(f"{verb}: {_plainly(cause)}; see docs/how-to/control.md") from None
    for url in (getattr(found, "url", None), getattr(found, "savepoint", None)):
        if url is not None:
            _check_place(verb, url)
    return found


def _check_place(verb: str, url: str) -> None:
    if "://" not in url and not os.path.isabs(url):
        # The leader has another current directory than the process that asks.
        raise DefinitionError(f"{verb}: {url!r} is a relative path; give an absolute one, or a url")
    open_storage(url)


def _plainly(cause: msgspec.ValidationError) -> str:
    """`Object contains unknown field `x`` in our words and on one line."""
    text = " ".join(str(cause).split())
    return text.replace("Object contains", "there is an").replace("Object missing", "there must be a")
