"""Recorded sinks: what is shown, what is repeated, and what is never right."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

import holdfast as hf
from holdfast.chaos.evidence import sink_left, sink_shapes
from holdfast.chaos.inside.recording_sinks import RecordedJob, RecordingSink, read_calls
from holdfast.connectors.contract import StagedPart


def part(*events: int) -> StagedPart:
    table = pa.table({"event": pa.array(events, pa.int64())})
    return StagedPart(0, table.num_rows, lambda: table)


def publish(directory: Path, *epochs: tuple[int, StagedPart], exactly_once: bool = True) -> None:
    publisher = RecordingSink(directory / "sinks", exactly_once, None).publisher("job", "out")
    assert publisher.published_through() == 0
    for epoch, given in epochs:
        publisher.publish(epoch, [given])
    publisher.close()


def events(directory: Path) -> list[int]:
    return [row["event"] for row in sink_left(directory, "out").rows()]


def test_an_epoch_published_again_is_shown_once(tmp_path: Path) -> None:
    publish(tmp_path, (1, part(1, 2)), (2, part()), (3, part(3)))
    publish(tmp_path, (3, part(3)))
    left = sink_left(tmp_path, "out")
    assert events(tmp_path) == [1, 2, 3]
    assert (left.given, left.conflicts) == (frozenset({1, 2, 3}), ())
    shown = [call.shown for call in read_calls(tmp_path / "sinks" / "out")]
    assert shown == ["new", "empty", "new", "same"]


def test_an_epoch_published_again_with_other_rows_is_a_conflict(tmp_path: Path) -> None:
    publish(tmp_path, (1, part(1, 2)), (1, part(1, 3)))
    left = sink_left(tmp_path, "out")
    assert left.conflicts == (1,)
    assert sorted(events(tmp_path)) == [1, 1, 2, 3]


def test_a_sink_that_cannot_recognise_a_repetition_shows_it(tmp_path: Path) -> None:
    publish(tmp_path, (1, part(1)), (1, part(1)), exactly_once=False)
    assert events(tmp_path) == [1, 1]
    assert sink_left(tmp_path, "out").conflicts == ()


def test_a_call_cut_short_by_a_kill_is_passed_over(tmp_path: Path) -> None:
    publish(tmp_path, (1, part(1)))
    with (tmp_path / "sinks" / "out" / "calls.jsonl").open("a") as file:
        file.write('{"epoch": 2, "ro')
    assert [call.epoch for call in read_calls(tmp_path / "sinks" / "out")] == [1]


class Sink:
    exactly_once = True

    def __init__(self) -> None:
        self.calls: list[int] = []

    def publisher(self, job: str, uid: str) -> Any:
        return self

    def published_through(self) -> int:
        return 7

    def publish(self, epoch: int, parts: Sequence[StagedPart]) -> None:
        self.calls.append(epoch)

    def close(self) -> None:
        pass


def declared(sink: Any) -> hf.Job:
    job = hf.Job("job")
    source = job.source(hf.MemorySource([("a", 1)], "key string, value long"), uid="source")
    source.key_by("key").aggregate(uid="sums", total=hf.sum("value")).sink(sink, uid="sums-out")
    source.sink(sink, uid="plain-out")
    return job


def test_the_real_sink_is_written_only_when_asked_for(tmp_path: Path) -> None:
    for real_sinks, calls in ((False, []), (True, [4])):
        sink = Sink()
        node = RecordedJob(declared(sink), tmp_path, real_sinks=real_sinks).graph().sinks[0]
        publisher = node.sink.publisher("job", node.uid)
        assert publisher.published_through() == (7 if real_sinks else 0)
        publisher.publish(4, [part(1)])
        assert sink.calls == calls


def test_a_file_sink_gets_a_directory_of_the_round(tmp_path: Path) -> None:
    job = declared(hf.FileSink(tmp_path / "users", format="parquet"))
    node = RecordedJob(job, tmp_path / "round", real_sinks=True).graph().sinks[0]
    node.sink.publisher("job", node.uid).publish(1, [part(5)])
    assert not (tmp_path / "users").exists()
    assert [row["event"] for row in sink_left(tmp_path / "round", "sums-out").rows()] == [5]


def test_a_sink_is_compared_by_what_stands_before_it() -> None:
    sums, plain = sink_shapes(declared(Sink()).graph())
    assert (sums.key, sums.stateless) == (("key",), False)
    assert (plain.key, plain.stateless) == (None, True)
