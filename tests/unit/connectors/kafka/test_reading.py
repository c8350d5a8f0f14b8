"""Where the reading of a range stops, and what its rows are."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, Message

import holdfast as hf
from holdfast.connectors.contract import Arrived
from holdfast.connectors.kafka.client import Connection
from holdfast.connectors.kafka.positions import Range
from holdfast.connectors.kafka.reading import RangeConsumer, batch_of
from holdfast.connectors.kafka.times import Places, times_of, within

RANGE = Range("t", 3, 10, 20, 0, False)


def message(offset: int, error: int | None = None, **more: Any) -> Any:
    told = KafkaError(error) if error is not None else None
    return Message(topic="t", partition=3, offset=offset, error=told, **more)


@pytest.mark.parametrize(
    ("got", "rows", "over"),
    [
        ([], [], False),
        ([message(10), message(19)], [10, 19], False),
        ([message(12), message(20), message(21)], [12], True),
        ([message(12), message(13, KafkaError._PARTITION_EOF)], [12], False),
        ([message(12), message(20, KafkaError._PARTITION_EOF)], [12], True),
        ([message(25, KafkaError._PARTITION_EOF)], [], True),
        ([message(15, KafkaError._PARTITION_EOF), message(22)], [], True),
    ],
)
def test_a_range_ends_at_the_first_offset_or_end_at_or_past_its_end(
    got: list[Any], rows: list[int], over: bool
) -> None:
    found, is_over = RangeConsumer(Connection("localhost"), RANGE)._sorted_out(got)
    assert ([each.offset() for each in found], is_over) == (rows, over)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError._AUTO_OFFSET_RESET, hf.InputVanished),
        (KafkaError.OFFSET_OUT_OF_RANGE, hf.InputVanished),
        (KafkaError._LOG_TRUNCATION, hf.InputVanished),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, hf.Unavailable),
        (KafkaError._TRANSPORT, hf.Unavailable),
    ],
)
def test_what_is_gone_is_told_from_what_is_away(code: int, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="t-3"):
        RangeConsumer(Connection("localhost"), RANGE)._sorted_out([message(12), message(13, code)])


def test_messages_are_rows_and_one_without_a_time_has_none() -> None:
    messages = [
        message(11, key=b"k", value=b"v", timestamp=(1, 1_500), headers=[("h", b"1")]),
        message(14, timestamp=(0, -1)),
    ]
    rows = batch_of(RANGE, messages, None).to_pylist()
    assert [row["offset"] for row in rows] == [11, 14]
    assert (rows[0]["key"], rows[0]["value"], rows[0]["headers"]) == (
        b"k",
        b"v",
        [{"key": "h", "value": b"1"}],
    )
    assert rows[0]["timestamp"].timestamp() == 1.5
    assert [rows[1][name] for name in ("key", "value", "headers", "timestamp")] == [None] * 4
    assert {(row["topic"], row["partition"]) for row in rows} == {("t", 3)}


def test_a_batch_tells_the_times_of_its_messages_and_a_task_that_runs_again_nothing_new() -> None:
    timed = [message(10, timestamp=(1, 5_000)), message(11, timestamp=(1, 3_000))]
    timed.append(message(12, timestamp=(0, -1)))
    told = times_of(batch_of(RANGE, timed, None))
    assert told == {("t", 3, 10): Arrived(3, 3_000, 5_000)}
    assert times_of(batch_of(RANGE, [timed[-1]], None)) == {}
    later = {("t", 3, 20): Arrived(1, 7_000, 7_000), ("u", 3, 11): Arrived(1, 8_000, 8_000)}
    places = Places()
    read = places.addInPlace(places.addInPlace(places.zero({}), told), places.addInPlace(told, later))
    assert within(read, [RANGE]) == [Arrived(3, 3_000, 5_000)], "others are of another slice"
