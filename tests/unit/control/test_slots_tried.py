from __future__ import annotations

from headgate.control.slots_tried import REFUSED_EPOCHS, SlotsTried


def at(rate: float, tried: SlotsTried, epochs: int = 30) -> SlotsTried:
    for _ in range(epochs):
        tried.came(rate)
    return tried


def test_slots_that_were_too_few_are_too_few_until_the_rate_has_fallen():
    tried = at(1_000, SlotsTried(8))
    assert tried.least == 1

    tried.too_few(3)

    assert at(1_000, tried).least == 4
    assert at(950, tried).least == 4  # no less, as far as one can see
    assert at(800, tried).least == 1
    assert at(5_000, tried).least == 4


def test_slots_that_did_not_come_are_out_of_reach_for_a_while_and_then_for_longer():
    tried = SlotsTried(8)

    tried.refused(2, epoch=100)
    assert [tried.most(e) for e in (100, 99 + REFUSED_EPOCHS, 100 + REFUSED_EPOCHS)] == [2, 2, 8]
    tried.refused(4, epoch=500)
    assert tried.most(500 + REFUSED_EPOCHS) == 4
    assert tried.most(500 + 2 * REFUSED_EPOCHS) == 8


def test_what_a_backlog_got_through_counts_more_than_what_is_promised():
    tried = SlotsTried(8)
    tried.ran(5, 1_700.0)

    assert tried.expected(5, 2_500.0) == 1_700.0
    assert tried.expected(6, 2_500.0) == 2_500.0
    tried.forget_speeds()
    assert tried.expected(5, 2_500.0) == 2_500.0


def test_one_slot_is_never_out_of_reach():
    tried = SlotsTried(8)

    tried.refused(0, epoch=100)

    assert tried.most(100) == 1
