from __future__ import annotations

from dataclasses import replace

import pytest

from headgate.control.tuning_history import (
    REFUSED_EPOCHS,
    TRIED_KEPT,
    EpochSizeAdvisor,
    Experience,
    ScalingHistory,
)
from headgate.planner.tuning.cost_model import EngineCosts, FlowModel, Step, Stream
from headgate.planner.tuning.epochs import EpochModel, EpochPrediction, EpochSettings
from headgate.planner.tuning.explained import TunedEpochs
from headgate.planner.tuning.tuned import tune_epochs

FLOW = FlowModel((Step("in", source_rate=1e4), Step("op", 1e-4)), (Stream("in", "op"),))
MODEL = EpochModel(FLOW, EngineCosts(1e-5, 0.0, epoch_s=0.3), levels=1, cores=1)
BEST = 57_000  # 19 times the rows that take as long as an epoch without any


def both(found: TunedEpochs) -> tuple[EpochSettings, EpochPrediction]:
    return found.settings, found.prediction


def tuned(rows: int) -> tuple[EpochSettings, EpochPrediction]:
    return both(tune_epochs(MODEL, rows_max=rows))


def test_the_best_is_as_the_tests_below_have_it():
    assert tune_epochs(MODEL).settings.rows_per_epoch == pytest.approx(BEST, rel=0.01)


@pytest.mark.parametrize(("typical", "wanted"), [(1_000, 8_000), (25_000, BEST), (200_000, BEST)])
def test_sources_are_told_what_pays_or_is_far_off(typical, wanted):
    found, _ = EpochSizeAdvisor(typical).ask(MODEL, typical, *tuned(wanted))

    assert found is not None and found.count == pytest.approx(wanted, rel=0.01)


@pytest.mark.parametrize(("typical", "wanted"), [(48_000, BEST), (80_000, BEST), (BEST, BEST)])
def test_a_number_that_would_change_little_is_not_told(typical, wanted):
    assert EpochSizeAdvisor(typical).ask(MODEL, typical, *tuned(wanted)) == (None, "")


def test_late_epochs_are_a_reason_for_somewhat_smaller_ones():
    told = EpochSizeAdvisor(80_000, latency_s=3.0)

    found, _ = told.ask(MODEL, 80_000, *both(tune_epochs(MODEL, latency_s=3.0)))

    assert found is not None and found.count == pytest.approx(
        12_385, rel=0.01
    )  # of 1.54 s, 1.95 times


def test_the_way_back_is_gone_only_if_it_is_long():
    told = EpochSizeAdvisor(None)
    assert told.ask(MODEL, 5_000, *tuned(40_000))[0] is not None

    assert told.ask(MODEL, 40_000, *tuned(30_000))[0] is None
    assert told.ask(MODEL, 40_000, *tuned(4_000))[0] is not None


def test_a_source_that_does_not_listen_is_told_once_and_that_is_noted_once():
    advisor = EpochSizeAdvisor(None)
    said = [advisor.ask(MODEL, 1_000, *tuned(8_000)) for _ in range(3)]

    assert [wanted is not None for wanted, _ in said] == [True, False, False]
    assert "told 8,000 rows per epoch, and still bring 1,000" in said[1][1]
    assert (said[0][1], said[2][1]) == ("", "")
    assert advisor.ask(MODEL, 8_000, *tuned(BEST))[0] is not None  # it has heard after all


def test_what_was_measured_counts_more_than_what_is_predicted():
    """Two slots were slower than the model says now; so is what nobody has tried yet."""
    engine = replace(MODEL, cores=4)
    two, one, three = (EpochSettings(n, 10_000, {}) for n in (2, 1, 3))
    seen = Experience()
    assert seen.corrected(engine, two) == engine.predict(two)

    seen.record(two, 10_000, 1.5 * engine.predict(two).epoch_s)
    seen.record(one, 10_000, engine.predict(one).epoch_s)

    assert seen.factor(engine, one) == 1.0  # the model was made from its epochs
    assert seen.factor(engine, two) == pytest.approx(1.5)
    assert seen.factor(engine, three) == pytest.approx(1.5)
    slower = seen.corrected(engine, two)
    assert slower.rows_per_s == pytest.approx(engine.predict(two).rows_per_s / 1.5)
    assert slower.latency_p95_s == pytest.approx(1.5 * engine.predict(two).latency_p95_s)


def test_instances_are_part_of_what_was_tried():
    seen, engine = Experience(), replace(MODEL, cores=4)
    few = EpochSettings(4, 10_000, {}, {"op": 2})
    all_over = replace(few, instances={"op": 4})

    seen.record(few, 10_000, 2.0 * engine.predict(few).epoch_s)
    seen.record(all_over, 10_000, 1.0)

    assert seen.factor(engine, few) == pytest.approx(2.0)
    assert seen.factor(engine, replace(few, instances={})) == 1.0


def test_only_so_many_settings_are_remembered():
    seen, engine = Experience(), replace(MODEL, cores=64)
    for slots in range(1, 40):
        settings = EpochSettings(slots, 10_000, {})
        seen.record(settings, 10_000, 1.2 * engine.predict(settings).epoch_s)

    assert len(seen._tried) == TRIED_KEPT
    assert seen.factor(engine, EpochSettings(1, 10_000, {})) == pytest.approx(1.2)  # as the others


def at(rate: float, tried: ScalingHistory, epochs: int = 30) -> ScalingHistory:
    for _ in range(epochs):
        tried.rates.append(rate)
    return tried


def test_slots_that_were_too_few_are_too_few_until_the_rate_has_fallen():
    tried = at(1_000, ScalingHistory(8))
    assert tried.least == 1

    tried.record_too_few(3)

    assert at(1_000, tried).least == 4
    assert at(950, tried).least == 4  # no less, as far as one can see
    assert at(800, tried).least == 1
    assert at(5_000, tried).least == 4


def test_slots_that_did_not_come_are_out_of_reach_for_a_while_and_then_for_longer():
    tried = ScalingHistory(8)

    tried.record_refusal(2, epoch=100)
    assert [tried.most(e) for e in (100, 99 + REFUSED_EPOCHS, 100 + REFUSED_EPOCHS)] == [2, 2, 8]
    tried.record_refusal(4, epoch=500)
    assert tried.most(500 + REFUSED_EPOCHS) == 4
    assert tried.most(500 + 2 * REFUSED_EPOCHS) == 8


def test_one_slot_is_never_out_of_reach():
    tried = ScalingHistory(8)

    tried.record_refusal(0, epoch=100)

    assert tried.most(100) == 1
