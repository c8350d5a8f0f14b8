"""Fault-tolerant, highly available stateful stream processing for PySpark."""

from holdfast.connectors.batch import BatchSource
from holdfast.connectors.channel import ChannelSink
from holdfast.connectors.console import ConsoleSink
from holdfast.connectors.contract import (
    Arrived,
    KeepingPublisher,
    Mark,
    Publisher,
    RememberingPublisher,
    SelectiveSink,
    Sink,
    Slice,
    Source,
    SourceReader,
    StagedPart,
    Waiting,
)
from holdfast.connectors.files.sink import FileSink
from holdfast.connectors.files.source import FileSource
from holdfast.connectors.foreach import ForeachEpochSink
from holdfast.connectors.generator import GeneratorSource
from holdfast.connectors.kafka.sink import KafkaSink
from holdfast.connectors.kafka.source import KafkaSource
from holdfast.connectors.lakes.delta import DeltaSink
from holdfast.connectors.lakes.iceberg import IcebergSink
from holdfast.connectors.memory import CRASH, MemorySink, MemorySource
from holdfast.connectors.postgres.sink import PostgresSink
from holdfast.connectors.postgres.table_source import TableSource
from holdfast.connectors.rabbitmq.sink import RabbitSink
from holdfast.connectors.rabbitmq.source import RabbitSource
from holdfast.connectors.redis.sink import RedisSink
from holdfast.connectors.redis.stream_source import RedisStreamSource
from holdfast.connectors.sockets import SocketSink, SocketSource
from holdfast.connectors.upsert import UpsertSink
from holdfast.errors import (
    CorruptionError,
    DefinitionError,
    EpochFailed,
    EpochInterrupted,
    FencedOut,
    HoldfastError,
    InputVanished,
    MalformedInput,
    PoisonEpoch,
    RestoreError,
    RetryableError,
    SessionLost,
    SinkFailed,
    SinkWentBack,
    StopUnfinished,
    Unavailable,
    Unpublished,
    UserCodeError,
)
from holdfast.graph.aggregates import collect, count, first, last, max, mean, min, sum
from holdfast.graph.contexts import BatchContext, BroadcastContext, Context, ShardContext
from holdfast.graph.functions import (
    BatchFunction,
    BroadcastFunction,
    CoFunction,
    KeyedFunction,
    OperatorFunction,
)
from holdfast.graph.job_graph import Part
from holdfast.graph.protection import ActiveReplicas, PassiveStandby, Rollback, UpstreamBackup
from holdfast.graph.uncoordinated import SavingPool, Uncoordinated
from holdfast.graph.window_functions import WindowBounds, WindowFunction
from holdfast.graph.windows import count_window, session, sliding, tumbling
from holdfast.inspect.point_query import KeyState, StateReader
from holdfast.runtime.doors.channel_source import ChannelSource
from holdfast.runtime.job import Job
from holdfast.runtime.job_handle import JobHandle
from holdfast.runtime.parts.parts_handle import PartsHandle
from holdfast.runtime.progress import Progress
from holdfast.runtime.restart_strategy import ExponentialDelay, FailureRate, FixedDelay, NoRestart
from holdfast.runtime.savepoints.savepoint import Savepoint
from holdfast.runtime.settings import RunOptions
from holdfast.runtime.spark_session import register_data_sources
from holdfast.secret import Secret
from holdfast.state.cells.declarations import (
    AggregatingState,
    BroadcastState,
    ListState,
    MapState,
    ReducingState,
    ValueState,
)
from holdfast.state.cells.timers import Timers
from holdfast.state.encoding.row_objects import Row
from holdfast.storage.key_saves.contract import StateId, StateStorage
from holdfast.storage.key_saves.files import FileStateStorage
from holdfast.storage.key_saves.postgres import PostgresStateStorage
from holdfast.storage.key_saves.redis import RedisStateStorage

__all__ = [
    "CRASH",
    "ActiveReplicas",
    "AggregatingState",
    "Arrived",
    "BatchContext",
    "BatchFunction",
    "BatchSource",
    "BroadcastContext",
    "BroadcastFunction",
    "BroadcastState",
    "ChannelSink",
    "ChannelSource",
    "CoFunction",
    "ConsoleSink",
    "Context",
    "CorruptionError",
    "DefinitionError",
    "DeltaSink",
    "EpochFailed",
    "EpochInterrupted",
    "ExponentialDelay",
    "FailureRate",
    "FencedOut",
    "FileSink",
    "FileSource",
    "FileStateStorage",
    "FixedDelay",
    "ForeachEpochSink",
    "GeneratorSource",
    "HoldfastError",
    "IcebergSink",
    "InputVanished",
    "Job",
    "JobHandle",
    "KafkaSink",
    "KafkaSource",
    "KeepingPublisher",
    "KeyState",
    "KeyedFunction",
    "ListState",
    "MalformedInput",
    "MapState",
    "Mark",
    "MemorySink",
    "MemorySource",
    "NoRestart",
    "OperatorFunction",
    "Part",
    "PartsHandle",
    "PassiveStandby",
    "PoisonEpoch",
    "PostgresSink",
    "PostgresStateStorage",
    "Progress",
    "Publisher",
    "RabbitSink",
    "RabbitSource",
    "RedisSink",
    "RedisStateStorage",
    "RedisStreamSource",
    "ReducingState",
    "RememberingPublisher",
    "RestoreError",
    "RetryableError",
    "Rollback",
    "Row",
    "RunOptions",
    "Savepoint",
    "SavingPool",
    "Secret",
    "SelectiveSink",
    "SessionLost",
    "ShardContext",
    "Sink",
    "SinkFailed",
    "SinkWentBack",
    "Slice",
    "SocketSink",
    "SocketSource",
    "Source",
    "SourceReader",
    "StagedPart",
    "StateId",
    "StateReader",
    "StateStorage",
    "StopUnfinished",
    "TableSource",
    "Timers",
    "Unavailable",
    "Uncoordinated",
    "Unpublished",
    "UpsertSink",
    "UpstreamBackup",
    "UserCodeError",
    "ValueState",
    "Waiting",
    "WindowBounds",
    "WindowFunction",
    "collect",
    "count",
    "count_window",
    "first",
    "last",
    "max",
    "mean",
    "min",
    "register_data_sources",
    "session",
    "sliding",
    "sum",
    "tumbling",
]


def __dir__() -> list[str]:
    return sorted(__all__)
