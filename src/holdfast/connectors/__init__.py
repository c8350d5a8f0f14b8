"""Where rows come from and where they go: what a connector promises, and the connectors of Holdfast itself.

To write one of your own, keep `Source` or `Sink` (docs/how-to/write-a-source-or-sink.md).
"""

from holdfast.connectors.batch import BatchSource
from holdfast.connectors.channel import ChannelSink
from holdfast.connectors.console import ConsoleSink
from holdfast.connectors.contract import (
    Arrived,
    CheckedSink,
    CheckedSource,
    ClosingReader,
    DatedReader,
    DriftingReader,
    DurableLog,
    EndingReader,
    ForgettingSource,
    KeepingPublisher,
    LogBatch,
    LoggedSource,
    MalformedRow,
    Mark,
    MissingSource,
    PartitionedReader,
    PartitionedSource,
    Pieces,
    PiecesReader,
    PlacedReader,
    Publisher,
    RememberingPublisher,
    RepeatingSource,
    SelectiveSink,
    Sifted,
    SiftingReader,
    SiftingSource,
    Sink,
    Slice,
    Source,
    SourceReader,
    StagedPart,
    TellingReader,
    VerifyingReader,
    Waiting,
    WaitingReader,
)
from holdfast.connectors.files.sink import FileSink
from holdfast.connectors.files.source import FileSource
from holdfast.connectors.foreach import ForeachEpochSink
from holdfast.connectors.generator import GeneratorSource
from holdfast.connectors.kafka.sink import KafkaSink
from holdfast.connectors.kafka.source import KafkaSource
from holdfast.connectors.lakes.delta import DeltaSink
from holdfast.connectors.lakes.iceberg import IcebergSink
from holdfast.connectors.lane_publisher import LanePublisher
from holdfast.connectors.lanes import (
    LANES,
    LaneMark,
    LaneRows,
    LaneSink,
    LaneWriter,
    OpenLanes,
    Outcome,
    Result,
    continues,
)
from holdfast.connectors.memory import CRASH, MemorySink, MemorySource
from holdfast.connectors.postgres.sink import PostgresSink
from holdfast.connectors.postgres.table_source import TableSource
from holdfast.connectors.rabbitmq.sink import RabbitSink
from holdfast.connectors.rabbitmq.source import RabbitSource
from holdfast.connectors.redis.sink import RedisSink
from holdfast.connectors.redis.stream_source import RedisStreamSource
from holdfast.connectors.sockets import SocketSink, SocketSource
from holdfast.connectors.upsert import UpsertSink

__all__ = [
    "CRASH",
    "LANES",
    "Arrived",
    "BatchSource",
    "ChannelSink",
    "CheckedSink",
    "CheckedSource",
    "ClosingReader",
    "ConsoleSink",
    "DatedReader",
    "DeltaSink",
    "DriftingReader",
    "DurableLog",
    "EndingReader",
    "FileSink",
    "FileSource",
    "ForeachEpochSink",
    "ForgettingSource",
    "GeneratorSource",
    "IcebergSink",
    "KafkaSink",
    "KafkaSource",
    "KeepingPublisher",
    "LaneMark",
    "LanePublisher",
    "LaneRows",
    "LaneSink",
    "LaneWriter",
    "LogBatch",
    "LoggedSource",
    "MalformedRow",
    "Mark",
    "MemorySink",
    "MemorySource",
    "MissingSource",
    "OpenLanes",
    "Outcome",
    "PartitionedReader",
    "PartitionedSource",
    "Pieces",
    "PiecesReader",
    "PlacedReader",
    "PostgresSink",
    "Publisher",
    "RabbitSink",
    "RabbitSource",
    "RedisSink",
    "RedisStreamSource",
    "RememberingPublisher",
    "RepeatingSource",
    "Result",
    "SelectiveSink",
    "Sifted",
    "SiftingReader",
    "SiftingSource",
    "Sink",
    "Slice",
    "SocketSink",
    "SocketSource",
    "Source",
    "SourceReader",
    "StagedPart",
    "TableSource",
    "TellingReader",
    "UpsertSink",
    "VerifyingReader",
    "Waiting",
    "WaitingReader",
    "continues",
]


def __dir__() -> list[str]:
    return sorted(__all__)
