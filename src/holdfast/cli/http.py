"""`--http` of `holdfast run` and `holdfast node`: jobs with their control API beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Unpack

import typer

from holdfast.errors import DefinitionError
from holdfast.runtime.job import Job, stopping_on_signals
from holdfast.runtime.parts.parts_handle import PartsHandle
from holdfast.runtime.progress import Listener, Message
from holdfast.runtime.settings import RunOptions

if TYPE_CHECKING:
    from holdfast.dashboard.api import Served

Http = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Answer the control API there, such as 127.0.0.1:8080."),
]
HttpTokenFile = Annotated[
    Path | None, typer.Option(help="The file with the token that the control API asks for.")
]


@contextmanager
def answering(
    http: str | None, token_file: Path | None, on_message: Message
) -> Iterator[Callable[[Mapping[str, Served]], None]]:
    """Take the port at `http`, if that is given, before anything starts: a wrong address costs no minute of
    Spark. Jobs are answered for from the call of what this gives until the end of the `with` block.
    """
    if http is None:
        if token_file is not None:
            raise DefinitionError("--http-token-file guards nothing without --http; give both")
        yield lambda jobs: None
        return
    from holdfast.dashboard.server import listen

    with ExitStack() as until_the_end:
        listening = until_the_end.enter_context(listen(*address(http), read_token(token_file)))

        def answer(jobs: Mapping[str, Served]) -> None:
            server = until_the_end.enter_context(listening.serve_all(jobs))
            on_message(f"the control API is at {server.url}")

        yield answer


def run_beside(
    http: str | None,
    token_file: Path | None,
    job: Job,
    checkpoint: str,
    *,
    on_progress: Listener,
    on_message: Message,
    **options: Unpack[RunOptions],
) -> None:
    """Run a job as `Job.run` does, and answer its control API at `http`, if that is given."""
    with answering(http, token_file, on_message) as answer:
        handle = job.start(checkpoint, on_progress=on_progress, on_message=on_message, **options)
        with stopping_on_signals(handle.stop, lambda: handle.told_to_stop):
            parts = handle.parts if isinstance(handle, PartsHandle) else {"": handle}
            answer({f"{job.name}.{part}".rstrip("."): each for part, each in parts.items()})
            handle.wait()


def address(text: str) -> tuple[str, int]:
    """Host and port of `127.0.0.1:8080`, `[::1]:8080` or `:8080`, which is loopback."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65_535:
        raise DefinitionError(f"--http {text!r} is not an address; write HOST:PORT, such as 127.0.0.1:8080")
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)


def read_token(file: Path | None) -> str | None:
    """The token in a file, without white space around it."""
    if file is None:
        return None
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError) as cause:
        raise DefinitionError(f"the token in {file} cannot be read ({cause}); check the file") from cause
