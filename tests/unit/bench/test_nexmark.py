"""The events of Nexmark keep their proportions and bounds; the comparison with DuckDB finds what is wrong."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from bench.nexmark.expected import EXPECTATIONS, differences, expected_rows
from bench.nexmark.generator import AUCTION, BID, LEAD, PERSON, Nexmark, tables

EVENTS = 10_000
SETTINGS = Nexmark(seed=3, interval_us=10_000)


@pytest.fixture(scope="module")
def events() -> pa.Table:
    return SETTINGS.table(0, EVENTS)


def column(events: pa.Table, kind: str, name: str) -> list[int]:
    values: list[int] = pc.struct_field(events[kind].combine_chunks(), name).drop_null().to_pylist()
    return values


def test_an_event_depends_on_its_number_and_the_settings_alone(events: pa.Table) -> None:
    assert pa.concat_tables(tables(SETTINGS, EVENTS, 777)).equals(events)
    assert Nexmark(seed=3, interval_us=10_000).table(4_000, 4_100).equals(events.slice(4_000, 100))
    assert not Nexmark(seed=4, interval_us=10_000).table(0, EVENTS).equals(events)


def test_of_fifty_events_one_is_a_person_three_are_auctions_and_the_rest_bids(events: pa.Table) -> None:
    for kind, name, of_fifty in ((PERSON, "person", 1), (AUCTION, "auction", 3), (BID, "bid", 46)):
        is_kind = pc.equal(events["kind"], kind)
        assert pc.sum(is_kind).as_py() == EVENTS // 50 * of_fifty
        assert events[name].is_valid().equals(is_kind), "the struct is there where the kind says so"


def test_no_event_is_further_behind_than_stated(events: pa.Table) -> None:
    newest, furthest = 0, 0
    for at in events["date_time"].cast(pa.int64()).to_pylist():
        newest = max(newest, at)
        furthest = max(furthest, newest - at)
    assert 0.9 * SETTINGS.disorder_us < furthest <= SETTINGS.disorder_us


def test_ids_count_up_and_references_are_near_the_newest(events: pa.Table) -> None:
    assert column(events, "person", "id") == list(range(1_000, 1_000 + EVENTS // 50))
    assert column(events, "auction", "id") == list(range(1_000, 1_000 + EVENTS // 50 * 3))
    opened = 1_000
    ahead = 0
    for event in events.to_pylist():
        if event["kind"] == AUCTION:
            opened = event["auction"]["id"]
        elif event["kind"] == BID:
            assert -200 <= event["bid"]["auction"] - opened <= LEAD
            ahead += event["bid"]["auction"] > opened
    assert ahead, "some bids come before their auction"


def test_half_of_the_bids_and_three_quarters_of_the_sellers_and_bidders_are_hot(events: pa.Table) -> None:
    def share(kind: str, name: str, remainder: int) -> float:
        values = column(events, kind, name)
        return sum(value % 100 == remainder for value in values) / len(values)

    assert 0.45 < share("bid", "auction", 0) < 0.56
    assert 0.7 < share("auction", "seller", 0) < 0.82
    assert 0.7 < share("bid", "bidder", 1) < 0.82


@pytest.mark.parametrize("query", [query for query in EXPECTATIONS if query != 12])
def test_a_row_too_many_or_too_few_is_found(query: int, events: pa.Table) -> None:
    right = expected_rows(query, events)
    assert differences(query, events, right) == []
    assert [found.split(":")[0] for found in differences(query, events, right.slice(1))] == ["missing"]
    twice = pa.concat_tables([right, right.slice(0, 1)])
    surplus = [] if EXPECTATIONS[query].key else ["surplus"]
    assert [found.split(":")[0] for found in differences(query, events, twice)] == surplus


def test_of_a_changelog_the_last_row_of_each_key_counts(events: pa.Table) -> None:
    right = expected_rows(4, events)
    early = right.set_column(1, "average", pc.multiply(right["average"], 2))
    assert differences(4, events, pa.concat_tables([early, right])) == []
    assert len(differences(4, events, pa.concat_tables([right, early]))) == 2 * len(right)


def test_windows_that_are_still_open_may_be_missing(events: pa.Table) -> None:
    right = expected_rows(5, events)
    newest = pc.max(right["window_end"])
    closed = right.filter(pc.less(right["window_end"], newest))
    assert differences(5, events, closed, closed_before=pc.max(closed["window_end"]).as_py()) == []
    assert differences(5, events, closed, closed_before=newest.as_py())


def test_processing_time_windows_may_be_any_that_are_aligned_and_count_every_bid(events: pa.Table) -> None:
    totals = expected_rows(12, events)

    def in_windows(start_us: int) -> pa.Table:
        start = pa.array([start_us] * len(totals)).cast(pa.timestamp("us"))
        end = pa.array([start_us + 10_000_000] * len(totals)).cast(pa.timestamp("us"))
        return pa.table(
            {"bidder": totals["bidder"], "bids": totals["bids"], "window_start": start, "window_end": end}
        )

    assert differences(12, events, in_windows(1_000_000_000_000_000)) == []
    assert differences(12, events, in_windows(1_000_000_001_000_000)), "not at a multiple of 10 s"
    assert differences(12, events, in_windows(1_000_000_000_000_000).slice(1)), "a bidder is missing"
