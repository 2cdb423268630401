"""Control records: the same bytes in every attempt, and sums that lose nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headgate.slot.plan import MASK, Control, add_counts
from strategies import examples

names = st.sampled_from(["a", "b", "c"])
slots = st.sampled_from(["0", "1"])
counts = st.lists(st.integers(0, MASK), min_size=3, max_size=3)
four = st.lists(st.integers(0, MASK), min_size=4, max_size=4)
controls = st.builds(
    Control,
    sent=st.dictionaries(names, counts),
    received=st.dictionaries(names, counts),
    edges=st.dictionaries(names, four),
    loads=st.dictionaries(names, st.dictionaries(slots, st.integers(0, 9))),
    sinks=st.dictionaries(names, st.lists(st.fixed_dictionaries({"name": names}), max_size=2)),
    moved=st.dictionaries(names, st.integers(0, 9)),
    late=st.dictionaries(names, st.integers(1, 9)),
    dead=st.dictionaries(names, st.integers(1, 9)),
    source_rows=st.dictionaries(names, st.integers(0, 9)),
    event_time=st.dictionaries(names, st.integers(-(2**60), 2**60)),
    versions=st.lists(st.integers(0, 3), max_size=2, unique=True).map(sorted),
    tasks=st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=2), max_size=2),
    error=st.none() | st.fixed_dictionaries({"type": names}),
)


@examples(60)
@given(control=controls)
def test_a_control_record_crosses_the_wire(control: Control) -> None:
    assert Control.from_bytes(control.to_bytes()) == control


def test_the_order_in_which_facts_were_noted_does_not_show() -> None:
    one = Control(moved={"a": 1, "b": 2})
    other = Control(moved={"b": 2, "a": 1})

    assert one.to_bytes() == other.to_bytes()
    assert Control().to_bytes() == b"{}"


@examples(60)
@given(parts=st.lists(controls, max_size=4))
def test_absorbing_adds_up_what_all_tasks_did(parts: list[Control]) -> None:
    total = Control()
    for part in parts:
        total.absorb(part)

    for name in ("moved", "late", "dead", "source_rows"):
        for key in "abc":
            assert getattr(total, name).get(key, 0) == sum(
                getattr(part, name).get(key, 0) for part in parts
            )
    for name, width in (("sent", 3), ("received", 3), ("edges", 4)):
        for key in "abc":
            found = [getattr(p, name)[key] for p in parts if key in getattr(p, name)]
            expected = [sum(c[i] for c in found) & MASK for i in range(width)] if found else None
            assert getattr(total, name).get(key) == expected
    for key in "abc":
        for slot in "01":
            assert total.loads.get(key, {}).get(slot, 0) == sum(
                p.loads.get(key, {}).get(slot, 0) for p in parts
            )
        files = [f for p in parts for f in p.sinks.get(key, [])]
        assert total.sinks.get(key, []) == files
        times = [p.event_time[key] for p in parts if key in p.event_time]
        assert total.event_time.get(key) == max(times, default=None)
    assert sorted(total.tasks) == sorted(task for p in parts for task in p.tasks)
    assert total.versions == sorted({v for p in parts for v in p.versions})
    assert total.error == next((p.error for p in parts if p.error), None)


def test_the_chain_of_a_later_level_wins() -> None:
    later = Control(chains={"count": {"0": ["new"]}}, state={"count": {"0": [2, 20]}})
    earlier = Control(
        chains={"count": {"0": ["old"], "1": ["other"]}}, state={"count": {"0": [1, 10]}}
    )

    later.absorb(earlier)

    assert later.chains == {"count": {"0": ["new"], "1": ["other"]}}
    assert later.state == {"count": {"0": [2, 20]}}


def test_absorbing_leaves_the_other_record_alone() -> None:
    other = Control(sent={"a": [1, 2, 3]}, loads={"op": {"0": 1}}, sinks={"s": [{"name": "f"}]})
    before = other.to_bytes()
    total = Control()

    total.absorb(other)
    total.absorb(other)

    assert other.to_bytes() == before
    assert total.sent == {"a": [2, 4, 6]}


def test_sums_of_seals_wrap_like_64_bit_numbers() -> None:
    totals = {"a": [1, 1, MASK]}
    add_counts(totals, "a", [1, 1, 2])
    assert totals == {"a": [2, 2, 1]}
