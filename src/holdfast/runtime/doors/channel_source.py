"""A channel of another job, or of a Structured Streaming query, as a source of any job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from holdfast.checkpoint.store.records import Json
from holdfast.errors import DefinitionError, HoldfastError, RestoreError
from holdfast.graph.job_graph import SourceNode
from holdfast.runtime.doors.door_reader import DoorReader, newest_columns, refuse_other_columns
from holdfast.state.encoding.types import parse_schema
from holdfast.storage.urls import open_storage


class ChannelSource:
    """Reads a channel: what `hf.ChannelSink` keeps in the checkpoint at `url`, or what a query has written
    there with the format `holdfast`. Of a job in parts, `url` is the checkpoint of the part.

    It begins with the oldest epoch that is held. Epochs that are let go before they are read end the run
    with InputVanished. `max_rows` is kept about: files are read whole. Event time is declared on the stream,
    as for any source. It is exhausted when the sender has come to its own end and all is read; a query tells
    of no end.
    """

    replayable: Final = True
    forgets: Final = True
    """The sender waits for no reader, and lets go of epochs that a reader may need again."""

    def __init__(self, url: str | Path, *, channel: str, schema: str) -> None:
        self.url: Final = str(url)
        self.channel: Final = channel
        self.schema: Final = schema

    def check(self) -> None:
        """A sender that has not begun yet is waited for."""
        reader = self.reader([])
        try:
            newest = newest_columns(open_storage(reader.place), reader.held())
        except RestoreError as refusal:
            raise DefinitionError(str(refusal)) from refusal
        except DefinitionError:
            raise
        except HoldfastError:
            # Storage, or damage there: the run meets it again, and tries again.
            return
        if newest is not None:
            refuse_other_columns(parse_schema(self.schema), newest, self.channel, reader.place)

    def reader(self, notes: Sequence[Json]) -> DoorReader:
        """`notes`: the identity of the checkpoint that is read."""
        return DoorReader(self.channel, self.url, parse_schema(self.schema), *notes[-1:])


def doors_of(sources: Iterable[SourceNode]) -> dict[str, DoorReader]:
    """The channels among sources, to look at what their senders have done since they were read."""
    return {node.uid: node.source.reader([]) for node in sources if isinstance(node.source, ChannelSource)}
