"""The events have the published proportions, ids, ratios and lengths, however they are cut."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.topology.schema import to_schema
from headgate_lab.nexmark.events import (
    BLOCK,
    BYTES,
    CYCLE,
    HOT_EVERY,
    SCHEMAS,
    TABLES,
    EventOptions,
    events,
    last_auction,
    last_person,
)
from strategies import examples

OPTIONS = EventOptions(events=100_000)


@pytest.fixture(scope="module")
def made() -> dict[str, pa.Table]:
    return events(OPTIONS, 0, OPTIONS.events)


def test_of_50_events_one_is_a_person_three_are_auctions(made: dict[str, pa.Table]) -> None:
    numbers = {name: made[name]["event"].to_numpy() for name in TABLES}
    assert [len(numbers[name]) for name in TABLES] == [2_000, 6_000, 92_000]
    assert set(numbers["person"] % CYCLE) == {0}
    assert set(numbers["auction"] % CYCLE) == {1, 2, 3}
    assert sorted(np.concatenate(list(numbers.values()))) == list(range(OPTIONS.events))


def test_the_columns_are_those_of_the_schemas(made: dict[str, pa.Table]) -> None:
    for name, table in made.items():
        assert table.schema.equals(to_schema(SCHEMAS[name])), name


def test_people_and_auctions_are_numbered_from_1000_without_gaps(
    made: dict[str, pa.Table],
) -> None:
    for name in ("person", "auction"):
        ids = made[name]["id"].to_numpy()
        assert ids.tolist() == list(range(1_000, 1_000 + len(ids)))


def test_bids_go_to_auctions_in_flight_or_about_to_come(made: dict[str, pa.Table]) -> None:
    bids = made["bid"]
    newest = last_auction(bids["event"].to_numpy())
    auction = bids["auction"].to_numpy() - 1_000
    assert (auction <= newest + 10).all()
    assert (auction >= np.minimum(newest // HOT_EVERY * HOT_EVERY, newest - 100)).all()
    assert (auction > newest).any(), "some bids come before their auction"


def test_half_of_the_bids_and_three_quarters_of_people_are_hot(made: dict[str, pa.Table]) -> None:
    bids, auctions = made["bid"], made["auction"]
    number = bids["event"].to_numpy()
    hot = bids["auction"].to_numpy() - 1_000 == last_auction(number) // HOT_EVERY * HOT_EVERY
    assert 0.50 < hot.mean() < 0.53  # the others find it by chance now and then
    bidder = bids["bidder"].to_numpy() - 2_000
    assert 0.74 < (bidder == last_person(number) // HOT_EVERY * HOT_EVERY + 1).mean() < 0.77
    seller = auctions["seller"].to_numpy() - 1_000
    newest = last_person(auctions["event"].to_numpy())
    assert 0.74 < (seller == newest // HOT_EVERY * HOT_EVERY).mean() < 0.77
    channels = pc.value_counts(bids["channel"])
    counts = dict(zip(*(channels.field(i).to_pylist() for i in (0, 1)), strict=True))
    hot_share = sum(counts[name] for name in ("Google", "Facebook", "Baidu", "Apple")) / len(bids)
    assert 0.49 < hot_share < 0.51


def test_rows_are_about_as_long_as_they_should_be(made: dict[str, pa.Table]) -> None:
    person, auction, bid = (made[name] for name in TABLES)
    texts = {
        "person": ["name", "emailAddress", "creditCard", "city", "state", "extra"],
        "auction": ["itemName", "description", "extra"],
        "bid": ["extra"],  # its address and channel are not counted
    }
    fixed = {"person": 8, "auction": 48, "bid": 32}
    for name, table in zip(TABLES, (person, auction, bid), strict=True):
        letters = sum(pc.sum(pc.binary_length(table[column])).as_py() for column in texts[name])
        assert letters / len(table) + fixed[name] == pytest.approx(BYTES[name], rel=0.02)


def test_prices_are_even_in_their_logarithm(made: dict[str, pa.Table]) -> None:
    logs = np.log10(made["bid"]["price"].to_numpy())
    assert logs.min() >= 2 and logs.max() <= 8
    counts, _ = np.histogram(logs, bins=6, range=(2, 8))
    assert counts == pytest.approx(len(logs) / 6, rel=0.04)


def test_times_never_go_back_and_auctions_end_after_they_began(made: dict[str, pa.Table]) -> None:
    for table in made.values():
        times = table["dateTime"].cast(pa.int64()).to_numpy()
        assert (np.diff(times) >= 0).all()
        assert (times % 1_000 == 0).all()
    auctions = made["auction"]
    lengths = pc.subtract(auctions["expires"], auctions["dateTime"]).cast(pa.int64()).to_numpy()
    assert lengths.min() >= 1_000
    # Twice the time that it takes for a hundred auctions to come, at most.
    assert lengths.max() <= 2e6 * 100 * CYCLE / 3 / OPTIONS.events_per_second


@given(st.lists(st.integers(0, 30_000), min_size=1, max_size=4))
@examples(5)
def test_events_do_not_depend_on_how_the_stream_is_cut(cuts: list[int]) -> None:
    cuts = sorted({0, *cuts, 3 * BLOCK})
    whole = events(OPTIONS, 0, 3 * BLOCK)
    parts = [events(OPTIONS, low, high) for low, high in pairwise(cuts)]
    for name in TABLES:
        assert pa.concat_tables(part[name] for part in parts).equals(whole[name])


def test_another_seed_draws_other_events() -> None:
    other = EventOptions(events=1_000, seed=18)
    assert not events(other, 0, 1_000)["bid"].equals(events(OPTIONS, 0, 1_000)["bid"])


def test_persistent_hot_ids_stay_hot() -> None:
    lasting = EventOptions(events=60_000, persistent=True)
    bids = events(lasting, 0, 60_000)["bid"]
    late = bids["auction"].to_numpy()[-20_000:] - 1_000
    assert 0.49 < (late < HOT_EVERY).mean() < 0.51
    passing = events(OPTIONS, 0, 100_000)["bid"]["auction"].to_numpy()[-20_000:] - 1_000
    assert (passing < HOT_EVERY).sum() == 0
    shares = np.bincount(late[late < HOT_EVERY]) / len(late)
    assert shares[0] > 4 * shares[9] > 0, "by a Zipf law"
