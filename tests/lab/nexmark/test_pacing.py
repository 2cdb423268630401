"""A comparison ends in the time that it was given, and goes on whoever fails."""

from __future__ import annotations

from headgate.testing import ManualClock
from headgate_lab.nexmark.bench import Rounds, _take_turn, geometric_means
from headgate_lab.nexmark.contestants import Ran
from headgate_lab.nexmark.pacing import Pace


def test_what_a_query_leaves_over_is_shared_by_the_others() -> None:
    clock = ManualClock()
    pace = Pace(3, 90.0, clock)
    took = {"a": 20.0, "b": 15.0}
    pace.next_query()  # has 30 seconds
    assert pace.fitting(took, "ab") == ["a"]
    clock.advance(10)
    pace.next_query()  # 80 are left for two
    assert pace.fitting(took, "ab") == ["a", "b"]
    clock.advance(79)
    pace.next_query()
    assert pace.fitting(took, "ab") == []
    clock.advance(100)
    assert pace.fitting(took, "ab") == []
    assert pace.gone == 189


def test_without_a_limit_all_rounds_are_run() -> None:
    pace = Pace(1)
    pace.next_query()
    assert pace.fitting({"a": 1e9}, ["a"]) == ["a"]


def test_who_fails_is_out_with_the_reason_and_the_others_go_on() -> None:
    def fails() -> Ran:
        raise TimeoutError("not done in 3 s")

    rounds = Rounds(rows=300, warmup=1)
    contestants = {"headgate": lambda: Ran((9.0, 1.0, 2.0)), "rocksdb": fails, "flink": lambda: 6.0}
    said: list[str] = []
    for name in list(contestants):
        _take_turn(name, contestants, rounds, said.append, "round 1")
    assert [*contestants] == ["headgate", "flink"]
    assert rounds.reasons == {"native": "not done in 3 s"}
    assert (rounds.rate("headgate"), rounds.rate("flink"), rounds.rate("rocksdb")) == (
        100,
        50,
        None,
    )
    assert rounds.latency("headgate") == 1.95
    assert len(said) == 3


def test_a_query_that_nobody_timed_has_no_ratio() -> None:
    found = {"q0": {"stateful": True, "over_native": None}}
    assert geometric_means(found)["over_native"] is None
