"""Does a plan bring rows together, or does it only fit the chance of the rows it was made from?

A plan is the best of very many for the rows of one period. Where those are few it finds a lot to
gain in pure noise: 200 rows between 300 keys and 300 others can be cut so that nineteen of twenty
stay in their slot, and of the next 200 one in three does, as before. So the rows a plan was made
from may not speak for it as rows it has not seen would. Two kinds of evidence count:

    rows of periods before     the plan was not chosen by them, so `CHANCE` standard deviations do:
                               of the last period, or of the last few added up
    rows it was made from      if they beat the best of all plans that move as many units

The first needs two periods that agree, the second needs rows: where there are many, a change is
acted on in the period that shows it, as ever. Where a plan was carried out in one of the periods
before, their rows flatter what it did; so among few rows the next change of the same units waits.

Whatever speaks for it, a plan has to bring more rows together than their number differs by from
period to period while nothing moves (`NOTICED` standard deviations): at rest nobody would notice
less, and a planner finds a little to gain in every period.

A planner that adds a few pairs a period (ALBIC) gains less than that in each: what it does is
noticed in the end, so only luck is asked about.

The bound: of n rows that would come together or part, come what may, with equal chance, as many
more come than part as z standard deviations (n ** 0.5) with a probability below exp(-z^2 / 2)
(Hoeffding 1963). Of N plans the best does with one below N times that, so z^2 = CHANCE^2 + 2 ln N.
N is the number of ways to choose the units that move, times those to give each another node.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import lgamma, log

import numpy as np

from headgate.arrays import I32
from headgate.planner.allocation.model import Situation, Traffic

CHANCE = 3.0  # standard deviations by which counts of rows must differ, to mean something
PERIODS_HEARD = 4  # before the present one
NOTICED = 3.0  # standard deviations of the rows that stay, below which nobody notices a gain
FALSE_PAIRS = 0.01  # share of pairs that speak by chance


def is_more_than_chance(situation: Situation, node: I32) -> bool:
    """Do more rows come together than part, by what their numbers would differ by chance?

    The rows are those that `node` was made from. It only brings some nearer: that is no chance.
    """
    gained, varies = _gain(situation, node, situation.traffic)
    return not varies or gained >= CHANCE * varies**0.5


def is_more_than_luck(
    situation: Situation, node: I32, before: Sequence[Traffic] = (), *, noticed: bool = True
) -> bool:
    """The same of the best of very many plans; rows of periods `before` did not choose it.

    They are the last first. As many sums are looked at, chance has as many tries. Unless `noticed`
    is false, a gain must be more than rows that stay differ by.
    """
    gained, varies = _gain(situation, node, situation.traffic)
    if noticed and gained < NOTICED * _varies_anyway(situation):
        return not varies
    if not varies or gained >= (CHANCE**2 + 2.0 * _log_plans(situation, node)) ** 0.5 * varies**0.5:
        return True
    gained, varies, bar = 0.0, 0.0, (CHANCE**2 + 2.0 * log(PERIODS_HEARD)) ** 0.5
    for rows in before[:PERIODS_HEARD]:
        gain, square = _gain(situation, node, rows)
        gained, varies = gained + gain, varies + square
        if gained > 0 and gained >= bar * varies**0.5:
            return True
    return False


def rows_that_speak(rows: Traffic, before: Sequence[Traffic], units: int) -> Traffic:
    """The pairs that occur more often than keys drawn apart would; the other rows go anywhere.

    A plan that has to be made, as loads are uneven or a slot leaves, goes by these if what it won
    by all rows was luck: they keep partners together, and nothing else is pulled anywhere. Counted
    over all periods heard. Of the pairs kept one in a hundred is there by chance (Benjamini and
    Hochberg 1995), by the chance that a Poisson number gets as high.
    """
    from scipy.special import pdtrc  # late: only who plans from few rows needs it

    heard = [rows, *before[:PERIODS_HEARD]]
    name = np.concatenate([t.sender * units + t.receiver for t in heard])
    pair, which = np.unique(name, return_inverse=True)
    count = np.bincount(which, np.concatenate([t.rate for t in heard]))
    total = count.sum()
    if not total:
        return rows
    sent = np.bincount(pair // units, count, units)
    got = np.bincount(pair % units, count, units)
    expected = sent[pair // units] * got[pair % units] / total
    chance = pdtrc(np.ceil(count) - 1.0, expected)
    order = np.sort(chance)
    possible = float(np.count_nonzero(sent)) * float(np.count_nonzero(got))
    allowed = FALSE_PAIRS * np.arange(1, len(order) + 1) / possible
    kept = order[order <= allowed]
    speaks = chance <= (kept[-1] if len(kept) else -1.0)
    mine = speaks[which[: len(rows.rate)]]
    a, b, rate = rows.sender[mine], rows.receiver[mine], rows.rate[mine]
    return Traffic(a, b, rate, rows.remote_load, rows.total - float(rate.sum()))


def _gain(situation: Situation, node: I32, rows: Traffic) -> tuple[float, float]:
    """How many more rows meet than part, and the variance of that if it were chance."""
    a, b, home = rows.sender, rows.receiver, situation.home
    comes = (node[a] == node[b]).astype(np.int64) - (home[a] == home[b])
    return float(rows.rate @ comes), float(rows.rate @ np.abs(comes))


def _varies_anyway(situation: Situation) -> float:
    """By how much the rows that stay in their slot differ from period to period, at rest."""
    rows = situation.traffic.total
    local = situation.collocation(situation.home)
    return float((rows * local * (1.0 - local)) ** 0.5)


def _log_plans(situation: Situation, node: I32) -> float:
    """Logarithm of how many plans move as many of the units that have rows."""
    talks = np.zeros(len(node), np.bool_)
    talks[situation.traffic.sender] = talks[situation.traffic.receiver] = True
    units, moved = int(talks.sum()), int((talks & (node != situation.home)).sum())
    chosen = lgamma(units + 1) - lgamma(moved + 1) - lgamma(units - moved + 1)
    return chosen + moved * log(max(1, len(situation.nodes) - 1))
