"""The events of Nexmark: people, auctions and bids, with the published proportions and ratios.

Of every 50 events one is a person, three are auctions, 46 are bids. Half of the bids go to the hot
auction, the first of the latest hundred; three quarters of bidders and sellers are hot. So what is
hot changes every 1,667 events (auctions) or 5,000 (people). **Nexmark-S** (`persistent=True`) draws
the hot ids from the first hundred instead, by a Zipf law, for the whole stream: skew that lasts.

Ids, prices, categories, channels and times follow the published generator, its slips included:
the id of a bidder has the first person id added twice. Rows have one more column, `event`, the
number of the event: dates are in milliseconds, and many bids tie.

Everything is drawn in blocks of a fixed number of events, each from a generator of its own, so that
an event does not depend on how the stream is cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

I64 = npt.NDArray[np.int64]

OF_A_CYCLE = {"person": 1, "auction": 3, "bid": 46}
CYCLE = sum(OF_A_CYCLE.values())
TABLES = tuple(OF_A_CYCLE)
BLOCK = 10_000  # events; a multiple of CYCLE
FIRST_ID, FIRST_CATEGORY = 1_000, 10
CATEGORIES = 5
LEAD = 10  # ids that may be used before they exist
HOT_EVERY = 100
IN_FLIGHT, ACTIVE = 100, 1_000  # auctions, people
HOT_AUCTION, HOT_SELLER, HOT_BIDDER, HOT_CHANNEL = 2, 4, 4, 2  # all but one in so many are hot
BYTES = {"person": 200, "auction": 500, "bid": 100}
STATES = "AZ,CA,ID,OR,WA,WY".split(",")
CITIES = (
    "Phoenix,Los Angeles,San Francisco,Boise,Portland,Bend,Redmond,Seattle,Kent,Cheyenne"
).split(",")
FIRST_NAMES = "Peter,Paul,Luke,John,Saul,Vicky,Kate,Julie,Sarah,Deiter,Walter".split(",")
LAST_NAMES = "Shultz,Abrams,Spencer,White,Bartels,Walton,Smith,Jones,Noris".split(",")
HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
COLD_CHANNELS = 10_000
TIMESTAMP = pa.timestamp("us", "UTC")
SCHEMAS = {
    "person": "id bigint, name string, emailAddress string, creditCard string, city string, "
    "state string, dateTime timestamp, extra string, event bigint",
    "auction": "id bigint, itemName string, description string, initialBid bigint, "
    "reserve bigint, dateTime timestamp, expires timestamp, seller bigint, category bigint, "
    "extra string, event bigint",
    "bid": "auction bigint, bidder bigint, price bigint, channel string, url string, "
    "dateTime timestamp, extra string, event bigint",
}


@dataclass(frozen=True)
class EventOptions:
    """Which events: how many, how fast in event time, from when on."""

    events: int = 1_000_000
    events_per_second: float = 10_000.0
    start: str = "2026-03-28T23:59:00"
    persistent: bool = False
    first_bidder: int = 2 * FIRST_ID  # the published generator adds the first id twice
    seed: int = 17

    @property
    def seconds(self) -> float:
        """How much event time there is."""
        return self.events / self.events_per_second

    def times_ms(self, numbers: I64) -> I64:
        """When events happen."""
        base = np.datetime64(self.start, "ms").astype(np.int64)
        told: I64 = base + (numbers * (1e6 / self.events_per_second)).astype(np.int64) // 1000
        return told


def events(options: EventOptions, first: int, until: int) -> dict[str, pa.Table]:
    """The events with numbers from `first` up to, not including, `until`, by table."""
    parts: dict[str, list[pa.Table]] = {name: [] for name in TABLES}
    for block in range(first // BLOCK, -(-until // BLOCK)):
        for name, table in _block(options, block).items():
            number = table["event"].to_numpy()
            low, high = np.searchsorted(number, [first, until])
            parts[name].append(table.slice(low, high - low))
    return {name: pa.concat_tables(found) for name, found in parts.items()}


@lru_cache(maxsize=2)
def _block(options: EventOptions, block: int) -> dict[str, pa.Table]:
    draw = np.random.default_rng((options.seed, block))
    numbers = np.arange(block * BLOCK, (block + 1) * BLOCK)
    place = numbers % CYCLE
    persons, auctions = OF_A_CYCLE["person"], OF_A_CYCLE["auction"]
    of = {
        "person": numbers[place < persons],
        "auction": numbers[(place >= persons) & (place < persons + auctions)],
        "bid": numbers[place >= persons + auctions],
    }
    make = {"person": _persons, "auction": _auctions, "bid": _bids}
    return {name: make[name](options, draw, of[name]) for name in TABLES}


def last_person(numbers: I64) -> I64:
    """The newest person, counted from 0, when an event happens."""
    return numbers // CYCLE


def last_auction(numbers: I64) -> I64:
    """The newest auction, counted from 0; -1: there is none yet."""
    cycle, place = np.divmod(numbers, CYCLE)
    before, each = OF_A_CYCLE["person"], OF_A_CYCLE["auction"]
    told: I64 = cycle * each + np.clip(place - before, -1, each - 1)
    return told


def _persons(options: EventOptions, draw: np.random.Generator, numbers: I64) -> pa.Table:
    count = len(numbers)
    columns: dict[str, Any] = {
        "id": last_person(numbers) + FIRST_ID,
        "name": _joined(" ", _one_of(draw, FIRST_NAMES, count), _one_of(draw, LAST_NAMES, count)),
        "emailAddress": _joined("", _words(draw, count, 7), "@", _words(draw, count, 5), ".com"),
        "creditCard": _joined(" ", *(_digits(draw, count) for _ in range(4))),
        "city": _one_of(draw, CITIES, count),
        "state": _one_of(draw, STATES, count),
    }
    return _finished("person", options, draw, numbers, columns)


def _auctions(options: EventOptions, draw: np.random.Generator, numbers: I64) -> pa.Table:
    count = len(numbers)
    newest = last_person(numbers)
    hot = _hot(options, draw, newest, HOT_SELLER, 0)
    initial = _prices(draw, count)
    horizon_ms = 1e3 * IN_FLIGHT * CYCLE / OF_A_CYCLE["auction"] / options.events_per_second
    lengths = 1 + draw.integers(0, max(int(2 * horizon_ms), 1), count)
    columns: dict[str, Any] = {
        "id": last_auction(numbers) + FIRST_ID,
        "itemName": _words(draw, count, 20),
        "description": _words(draw, count, 100),
        "initialBid": initial,
        "reserve": initial + _prices(draw, count),
        "dateTime": None,
        "expires": _times(options.times_ms(numbers) + lengths),
        "seller": np.where(hot < 0, _some_person(draw, newest), hot) + FIRST_ID,
        "category": FIRST_CATEGORY + draw.integers(0, CATEGORIES, count),
    }
    return _finished("auction", options, draw, numbers, columns)


def _bids(options: EventOptions, draw: np.random.Generator, numbers: I64) -> pa.Table:
    count = len(numbers)
    newest, people = last_auction(numbers), last_person(numbers)
    auction = _hot(options, draw, newest, HOT_AUCTION, 0)
    bidder = _hot(options, draw, people, HOT_BIDDER, 1)
    oldest = np.maximum(newest - IN_FLIGHT, 0)
    some = oldest + (draw.random(count) * (newest - oldest + 1 + LEAD)).astype(np.int64)
    channels, urls = _channels(options.seed)
    cold = len(HOT_CHANNELS) + draw.integers(0, COLD_CHANNELS, count)
    is_hot = draw.integers(0, HOT_CHANNEL, count) > 0
    channel = np.where(is_hot, draw.integers(0, len(HOT_CHANNELS), count), cold)
    columns: dict[str, Any] = {
        "auction": np.where(auction < 0, some, auction) + FIRST_ID,
        "bidder": np.where(bidder < 0, _some_person(draw, people), bidder) + options.first_bidder,
        "price": _prices(draw, count),
        "channel": channels.take(pa.array(channel)),
        "url": urls.take(pa.array(channel)),
    }
    return _finished("bid", options, draw, numbers, columns)


def _hot(
    options: EventOptions, draw: np.random.Generator, newest: I64, ratio: int, offset: int
) -> I64:
    """The hot id of each event; -1 for those that go elsewhere."""
    is_hot = draw.integers(0, ratio, len(newest)) > 0
    if options.persistent:
        rank = draw.choice(HOT_EVERY, len(newest), p=_zipf())
        chosen = np.minimum(rank + offset, newest)
    else:
        chosen = newest // HOT_EVERY * HOT_EVERY + offset
    told: I64 = np.where(is_hot, chosen, -1)
    return told


def _zipf() -> npt.NDArray[np.float64]:
    weight = 1.0 / np.arange(1, HOT_EVERY + 1)
    told: npt.NDArray[np.float64] = weight / weight.sum()
    return told


def _some_person(draw: np.random.Generator, newest: I64) -> I64:
    """One of the active people, or of those that are about to come."""
    active = np.minimum(newest + 1, ACTIVE)
    told: I64 = newest + 1 - active + (draw.random(len(newest)) * (active + LEAD)).astype(np.int64)
    return told


def _prices(draw: np.random.Generator, count: int) -> I64:
    told: I64 = np.rint(10.0 ** (6.0 * draw.random(count)) * 100.0).astype(np.int64)
    return told


def _finished(
    name: str,
    options: EventOptions,
    draw: np.random.Generator,
    numbers: I64,
    columns: dict[str, Any],
) -> pa.Table:
    """With the time, the filling that makes rows as long as they should be, and the number."""
    size = np.full(len(numbers), 8 if name == "person" else 32)
    if name == "auction":
        size += 16
    texts = [
        c for n, c in columns.items() if isinstance(c, pa.Array) and pa.types.is_string(c.type)
    ]
    if name != "bid":
        for text in texts:
            size += pc.binary_length(text).to_numpy()
    columns["dateTime"] = _times(options.times_ms(numbers))
    left = np.maximum(BYTES[name] - size, 0)
    delta = np.rint(left * 0.2).astype(np.int64)
    filling = left - delta + (draw.random(len(numbers)) * 2 * delta).astype(np.int64)
    columns["extra"] = _slices(draw, _letters(options.seed), filling)
    columns["event"] = numbers
    return pa.table(columns)


def _times(milliseconds: I64) -> pa.Array:
    return pa.array(milliseconds * 1000).cast(TIMESTAMP)


def _joined(between: str, *parts: Any) -> pa.Array:
    return pc.binary_join_element_wise(*parts, between)


def _one_of(draw: np.random.Generator, choices: list[str], count: int) -> pa.Array:
    return pa.array(choices).take(pa.array(draw.integers(0, len(choices), count)))


def _digits(draw: np.random.Generator, count: int) -> pa.Array:
    numbers = pa.array(draw.integers(0, 10_000, count)).cast(pa.string())
    return pc.utf8_lpad(numbers, 4, "0")


def _words(draw: np.random.Generator, count: int, longest: int, special: str = " ") -> pa.Array:
    """Random text of 3 to `longest` characters, one of 13 of them special; trimmed."""
    lengths = draw.integers(3, longest, count)
    total = int(lengths.sum())
    letters = draw.integers(ord("a"), ord("z") + 1, total, np.uint8)
    letters[draw.integers(0, 13, total) == 0] = ord(special)
    return pc.utf8_trim_whitespace(_text(letters, lengths))


def _slices(draw: np.random.Generator, letters: npt.NDArray[np.uint8], lengths: I64) -> pa.Array:
    """A piece of the letters for each length."""
    begin = (draw.random(len(lengths)) * (len(letters) - lengths)).astype(np.int64)
    before = np.cumsum(lengths) - lengths
    at = np.arange(int(lengths.sum())) + np.repeat(begin - before, lengths)
    return _text(letters[at], lengths)


def _text(letters: npt.NDArray[np.uint8], lengths: I64) -> pa.Array:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(letters.tobytes())]
    return pa.StringArray.from_buffers(len(lengths), buffers[1], buffers[2])


@lru_cache(maxsize=2)
def _letters(seed: int) -> npt.NDArray[np.uint8]:
    draw = np.random.default_rng((seed, 1 << 40))
    return draw.integers(ord("a"), ord("z") + 1, 1 << 20, np.uint8)


@lru_cache(maxsize=2)
def _channels(seed: int) -> tuple[pa.Array, pa.Array]:
    """Names and addresses, the hot ones first; nine of ten cold addresses name their channel."""
    draw = np.random.default_rng((seed, 2 << 40))
    count = len(HOT_CHANNELS) + COLD_CHANNELS
    names = [*HOT_CHANNELS, *(f"channel-{number}" for number in range(COLD_CHANNELS))]
    folders = [_words(draw, count, 5, "_") for _ in range(3)]
    urls = _joined("/", "https://www.nexmark.com", *folders, "item.htm?query=1")
    said = [f"&channel_id={_reversed(number)}" for number in range(COLD_CHANNELS)]
    says = draw.integers(0, 10, COLD_CHANNELS) > 0
    ids = [""] * len(HOT_CHANNELS) + [text if is_said else "" for text, is_said in zip(said, says)]
    return pa.array(names), _joined("", urls, pa.array(ids))


def _reversed(number: int) -> int:
    """The bits of a 32-bit number back to front, without the sign."""
    word = int(f"{number:032b}"[::-1], 2)
    return abs(word - (1 << 32) if word >> 31 else word)
