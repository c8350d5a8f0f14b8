"""Fault-tolerant, highly available stateful stream processing for PySpark."""

from holdfast.engine.job import Job, JobHandle
from holdfast.engine.progress import Progress
from holdfast.errors import (
    CorruptionError,
    DefinitionError,
    EpochFailed,
    FencedOut,
    HoldfastError,
    InputVanished,
    RestoreError,
    RetryableError,
    UserCodeError,
)
from holdfast.graph.aggregates import collect, count, first, last, max, mean, min, sum
from holdfast.graph.functions import BatchFunction, KeyedFunction
from holdfast.io.console import ConsoleSink
from holdfast.io.contract import Publisher, Sink, Slice, Source, SourceReader, StagedPart
from holdfast.io.file_sink import FileSink
from holdfast.io.file_source import FileSource
from holdfast.io.generator import GeneratorSource
from holdfast.io.memory import CRASH, MemorySink, MemorySource
from holdfast.state.handles import AggregatingState, ListState, MapState, ReducingState, ValueState

__all__ = [
    "CRASH",
    "AggregatingState",
    "BatchFunction",
    "ConsoleSink",
    "CorruptionError",
    "DefinitionError",
    "EpochFailed",
    "FencedOut",
    "FileSink",
    "FileSource",
    "GeneratorSource",
    "HoldfastError",
    "InputVanished",
    "Job",
    "JobHandle",
    "KeyedFunction",
    "ListState",
    "MapState",
    "MemorySink",
    "MemorySource",
    "Progress",
    "Publisher",
    "ReducingState",
    "RestoreError",
    "RetryableError",
    "Sink",
    "Slice",
    "Source",
    "SourceReader",
    "StagedPart",
    "UserCodeError",
    "ValueState",
    "collect",
    "count",
    "first",
    "last",
    "max",
    "mean",
    "min",
    "sum",
]
