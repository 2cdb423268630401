from __future__ import annotations

import pytest

from headgate.control.rows_told import RowsTold
from headgate.planner.tuning.cost_model import EngineCosts, FlowModel, Step, Stream
from headgate.planner.tuning.epoch_model import EpochModel
from headgate.planner.tuning.epochs import TunedEpochs, tune_epochs

FLOW = FlowModel((Step("in", source_rate=1e4), Step("op", 1e-4)), (Stream("in", "op"),))
MODEL = EpochModel(FLOW, EngineCosts(1e-5, 0.0, epoch_s=0.3), levels=1, cores=1)
BEST = 57_000  # 19 times the rows that take as long as an epoch without any


def tuned(rows: int) -> TunedEpochs:
    return tune_epochs(MODEL, rows_max=rows)


def test_the_best_is_as_the_tests_below_have_it():
    assert tune_epochs(MODEL).settings.rows_per_epoch == pytest.approx(BEST, rel=0.01)


@pytest.mark.parametrize(("typical", "wanted"), [(1_000, 8_000), (25_000, BEST), (200_000, BEST)])
def test_sources_are_told_what_pays_or_is_far_off(typical, wanted):
    found = RowsTold(typical).ask(MODEL, typical, tuned(wanted))

    assert found is not None and found.rows == pytest.approx(wanted, rel=0.01)


@pytest.mark.parametrize(("typical", "wanted"), [(48_000, BEST), (80_000, BEST), (BEST, BEST)])
def test_a_number_that_would_change_little_is_not_told(typical, wanted):
    assert RowsTold(typical).ask(MODEL, typical, tuned(wanted)) is None


def test_late_epochs_are_a_reason_for_somewhat_smaller_ones():
    told = RowsTold(80_000, latency_s=3.0)

    found = told.ask(MODEL, 80_000, tune_epochs(MODEL, latency_s=3.0))

    assert found is not None and found.rows == pytest.approx(17_000, rel=0.01)


def test_the_way_back_is_gone_only_if_it_is_long():
    told = RowsTold(None)
    assert told.ask(MODEL, 5_000, tuned(40_000)) is not None

    assert told.ask(MODEL, 40_000, tuned(30_000)) is None
    assert told.ask(MODEL, 40_000, tuned(4_000)) is not None


def test_a_source_that_does_not_listen_is_told_once_and_that_is_noted_once():
    told = RowsTold(None)
    assert told.ask(MODEL, 1_000, tuned(8_000)) is not None and told.take_note() == ""

    assert told.ask(MODEL, 1_000, tuned(8_000)) is None
    assert "told 8,000 rows per epoch, and still bring 1,000" in told.take_note()
    assert told.ask(MODEL, 1_000, tuned(8_000)) is None and told.take_note() == ""
    assert told.ask(MODEL, 8_000, tuned(BEST)) is not None  # it has heard after all
