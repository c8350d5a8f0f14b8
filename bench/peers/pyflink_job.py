"""The keyed running sum with PyFlink, for a Python that has it and a cluster that runs.

    flink run -m HOST:PORT -py pyflink_job.py IN OUT MARKS CHECKPOINTS

A function with a value state in thread mode, so Python runs inside the task managers' own processes; exactly
once, a checkpoint every second, with the state backend that Flink takes by itself (on the heap). PyFlink
brings no Parquet format along: it reads and writes lines of text, by Flink's own connector for files.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyflink.common import Configuration, Encoder, Types, WatermarkStrategy
from pyflink.datastream import CheckpointingMode, KeyedProcessFunction, StreamExecutionEnvironment
from pyflink.datastream.connectors.file_system import FileSink, FileSource, RollingPolicy, StreamFormat
from pyflink.datastream.state import ValueStateDescriptor

CHECKPOINT_MS = 1_000
NOTED_ROWS = 500


class RunningSum(KeyedProcessFunction):
    """Keeps a sum for each key, and notes how many rows were through, and when."""

    def __init__(self, marks: str) -> None:
        self._marks, self._rows = marks, 0

    def open(self, runtime_context: Any) -> None:
        # In process mode this runs in a Python that the task manager has started.
        if Path(os.readlink("/proc/self/exe")).name != "java":
            raise RuntimeError("PyFlink has not taken thread mode")
        self._total = runtime_context.get_state(ValueStateDescriptor("total", Types.LONG()))
        self._file = (Path(self._marks) / f"{os.getpid()}.txt").open("a", buffering=1)

    def process_element(self, value: Any, ctx: Any) -> Iterator[str]:
        if self._rows % NOTED_ROWS == 0:
            self._note()
        total = (self._total.value() or 0) + value[1]
        self._total.update(total)
        yield f"{value[0]},{total}"
        self._rows += 1

    def close(self) -> None:
        self._note()
        self._file.close()

    def _note(self) -> None:
        self._file.write(f"{time.monotonic()} {self._rows}\n")


def parsed(line: str) -> tuple[int, int]:
    key, _, value = line.partition(",")
    return int(key), int(value)


def environment(checkpoints: str) -> StreamExecutionEnvironment:
    settings = Configuration()
    for name, value in {
        "python.execution-mode": "thread",
        "python.executable": sys.executable,
        "execution.checkpointing.dir": Path(checkpoints).as_uri(),
        "pipeline.object-reuse": "true",
        "restart-strategy.type": "none",
    }.items():
        settings.set_string(name, value)
    found = StreamExecutionEnvironment.get_execution_environment(settings)
    found.enable_checkpointing(CHECKPOINT_MS, CheckpointingMode.EXACTLY_ONCE)
    return found


def main(source: str, out: str, marks: str, checkpoints: str) -> None:
    env = environment(checkpoints)
    files = FileSource.for_record_stream_format(StreamFormat.text_line_format(), source).build()
    sink = (
        FileSink.for_row_format(out, Encoder.simple_string_encoder("UTF-8"))
        .with_rolling_policy(RollingPolicy.on_checkpoint_rolling_policy())
        .build()
    )
    lines = env.from_source(files, WatermarkStrategy.no_watermarks(), "slices")
    rows = lines.map(parsed, output_type=Types.TUPLE([Types.LONG(), Types.LONG()]))
    keyed = rows.key_by(lambda row: row[0], key_type=Types.LONG())
    keyed.process(RunningSum(marks), output_type=Types.STRING()).sink_to(sink)
    env.execute("running-sum")


if __name__ == "__main__":
    main(*sys.argv[1:])
