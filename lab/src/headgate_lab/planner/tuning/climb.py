"""Better configurations from good ones: other batches and instances of one step at a time.

Every move of a step is tried: its batch a little or twice as large or as small, its instances
likewise, and either with as much of the other as it then needs. Moves that help are made together
as far as they help together. Where no instance is left, the gain of one step is paired with the
loss of another. Batches of neighbours, and of all steps, grow and shrink together as well. In a
small flow any two moves are tried before it ends. Each round is better than the one before it.

It finds a low place, not always the lowest. A round is linear in the flow's size, since only the
steps with most latency are looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from headgate.arrays import F64, I64
from headgate.planner.tuning.cost_model import ROUNDING
from headgate_lab.planner.tuning.trials import Point, Told, Trials

STEPS_MAX = 24  # looked at in one round
PAIRS_MAX = 6  # gains, and losses, that are paired
PAIRED_MAX = 80  # moves of a small flow, of which any two are tried before the search ends
LEAST_GAIN = 1e-3  # of the score, for another round
LEAST_PART = 0.125  # of what is left to the target, where that is less
OTHER_PATHS = 0.01  # what the other paths count: else of two equal ones none would be shortened

Judge = Callable[[I64, Told], F64]


@dataclass(frozen=True)
class _Moves:
    """Other instances and batches, each of one step."""

    step: I64
    dop: I64
    batch: I64

    def columns(self, at: Point, groups: Sequence[Sequence[int]]) -> tuple[I64, I64]:
        """A configuration for each group of moves."""
        dop = np.repeat(at.dop[:, None], len(groups), axis=1)
        batch = np.repeat(at.batch[:, None], len(groups), axis=1)
        moves = np.array([move for group in groups for move in group], np.intp)
        column = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
        dop[self.step[moves], column] = self.dop[moves]
        batch[self.step[moves], column] = self.batch[moves]
        return dop, batch

    def pairs(self) -> list[list[int]]:
        """Any two moves of different steps; none where there are too many."""
        if len(self.step) > PAIRED_MAX:
            return []
        every = combinations(range(len(self.step)), 2)
        return [[one, other] for one, other in every if self.step[one] != self.step[other]]


class Climb:
    """A search over configurations of a flow, with at most `instances` (sources not counted).

    `rounds` is what is left of them, for all searches together.
    """

    def __init__(self, trials: Trials, instances: int | None, rounds: int) -> None:
        self._trials, self.rounds = trials, rounds
        self._most = math.inf if instances is None else instances

    def to_latency(self, start: Point, share: float, target_s: float) -> Point:
        """Less latency, down to the target, while such a share of the rate gets through."""

        def judge(_: I64, told: Told) -> F64:
            score = told.latency_s + OTHER_PATHS * told.ready_s.mean(axis=0)
            return np.where(told.share >= share * (1 - ROUNDING), score, np.inf)

        return self._search(start, judge, share, self._heaviest, target_s)

    def to_share(self, start: Point, target_s: float) -> Point:
        """A larger share of the rate within the target, which `start` is."""

        def judge(_: I64, told: Told) -> F64:
            return np.where(told.latency_s <= target_s, 1 / told.share, np.inf)

        return self._search(start, judge, start.share, self._heaviest, 0.0)

    def to_fewer(self, start: Point, target_s: float) -> Point:
        """Fewer instances, with the share and the latency that there are."""

        def judge(used: I64, told: Told) -> F64:
            good = (told.share >= start.share * (1 - 1e-6)) & (told.latency_s <= target_s)
            return np.where(good, used + 0.5 * told.latency_s / target_s, np.inf)

        def looked_at(at: Point) -> I64:
            spare = at.dop - self._needed(at, np.arange(len(at.dop)), at.batch, start.share)
            most: I64 = np.argsort(-spare, kind="stable")[:STEPS_MAX]
            return most

        return self._search(start, judge, start.share, looked_at, 0.0)

    # --- inside ----------------------------------------------------------------------------
    def _search(
        self,
        start: Point,
        judge: Judge,
        share: float,
        looked_at: Callable[[Point], I64],
        target_s: float,
    ) -> Point:
        at, score = start, float(self._scores(start.dop[:, None], start.batch[:, None], judge)[0])
        while self.rounds > 0 and at.latency_s > target_s:
            self.rounds -= 1
            steps = looked_at(at)
            moves = self._moves(at, steps, share)
            alone = [[move] for move in range(len(moves.step))]
            groups = self._groups(at, moves, self._scores(*moves.columns(at, alone), judge), score)
            tried = self._with_scaled(at, steps, *moves.columns(at, groups))
            left = 1 - target_s / at.latency_s
            enough = (1 - min(LEAST_GAIN, left * LEAST_PART)) * score
            better = self._best(*tried, judge, enough)
            if better is None:
                better = self._best(*moves.columns(at, moves.pairs()), judge, enough)
            if better is None:
                break
            at, score = better
        return at

    def _best(
        self, dop: I64, batch: I64, judge: Judge, enough: float
    ) -> tuple[Point, float] | None:
        """The column with the best score, if that is good enough, and the score."""
        if not dop.shape[1]:
            return None
        scores = self._scores(dop, batch, judge)
        scores[self._used(dop) > self._most] = np.inf
        best = int(scores.argmin())
        if scores[best] > enough:
            return None
        return self._trials.point(dop[:, best], batch[:, best]), float(scores[best])

    def _heaviest(self, at: Point) -> I64:
        return self._trials.heaviest(at, STEPS_MAX)

    def _scores(self, dop: I64, batch: I64, judge: Judge) -> F64:
        return judge(self._used(dop), self._trials.tell(dop, batch))

    def _used(self, dop: I64) -> I64:
        used: I64 = dop[~self._trials.is_source].sum(axis=0)
        return used

    def _groups(self, at: Point, moves: _Moves, alone: F64, score: float) -> list[list[int]]:
        """Moves worth making together: the best of each step, the first 1, 2, 4 …, and pairs."""
        more = moves.dop - at.dop[moves.step]
        left = self._most - int(self._used(at.dop))
        order = np.argsort(alone, kind="stable")
        order = order[np.isfinite(alone[order])]
        gains = [int(m) for m in order if alone[m] < score]
        best: dict[int, int] = {}
        spent = 0
        for move in gains:
            step = int(moves.step[move])
            if step not in best and spent + more[move] <= left:
                best[step] = move
                spent += max(0, int(more[move]))
        chosen = list(best.values())
        groups = [chosen[: 2**k] for k in range(len(chosen).bit_length())]
        groups += [chosen] if chosen else []
        wishes = [m for m in gains if more[m] > left][:PAIRS_MAX]
        losses = [int(m) for m in order if more[m] < 0][:PAIRS_MAX]
        groups += [[w, v] for w in wishes for v in losses if moves.step[w] != moves.step[v]]
        return groups

    def _with_scaled(self, at: Point, steps: I64, dop: I64, batch: I64) -> tuple[I64, I64]:
        """And with batches of all steps, or of two neighbours, larger or smaller together.

        What a step takes in and what it puts out have to match: alone, neither is better.
        """
        among = set(steps.tolist())
        together = [[p, c] for p, c in self._trials.pairs if p in among][: 2 * STEPS_MAX]
        scaled = [batch]
        for change in _changes(at.batch):
            rows = np.clip(at.batch + change, 1, self._trials.largest)
            columns = np.repeat(at.batch[:, None], len(together) + 1, axis=1)
            columns[:, -1] = rows
            for number, pair in enumerate(together):
                columns[pair, number] = rows[pair]
            scaled.append(columns)
        every = np.concatenate(scaled, axis=1)
        same = np.repeat(at.dop[:, None], every.shape[1] - dop.shape[1], axis=1)
        return np.concatenate([dop, same], axis=1), every

    def _moves(self, at: Point, steps: I64, share: float) -> _Moves:
        trials = self._trials
        dop, batch = at.dop[steps], at.batch[steps]
        tried: list[tuple[I64, I64]] = []
        for change in (-(batch - batch // 8), *_changes(batch), 7 * batch):
            rows = np.clip(batch + change, 1, trials.largest[steps])
            tried += [(dop, rows), (self._needed(at, steps, rows, share), rows)]
        few = dop // 32 + 1
        for change in (*_changes(dop), -few, 0 * dop, few):
            count = np.maximum(dop + change, 1)
            tried += [(count, batch), (count, self._rows_for(steps, count, share))]
        tried.append((self._needed(at, steps, batch, share), batch))
        step = np.tile(steps, len(tried))
        new_dop = np.concatenate([one for one, _ in tried])
        new_batch = np.concatenate([one for _, one in tried])
        new_dop = np.where(trials.is_source[step], at.dop[step], new_dop)
        found = np.unique(np.stack([step, new_dop, new_batch]), axis=1)
        step, new_dop, new_batch = found
        other = (new_dop != at.dop[step]) | (new_batch != at.batch[step])
        return _Moves(step[other], new_dop[other], new_batch[other])

    def _needed(self, at: Point, steps: I64, rows: I64, share: float) -> I64:
        """Instances that such batches of these steps need."""
        batch = at.batch.copy()
        batch[steps] = rows
        work = share * self._trials.work(batch[:, None])[steps, 0]
        needed: I64 = np.maximum(1, np.ceil(work * (1 - ROUNDING))).astype(np.int64)
        return needed

    def _rows_for(self, steps: I64, dop: I64, share: float) -> I64:
        """The smallest batches that so many instances need, if all streams could have them."""
        left = dop - share * self._trials.other_work[steps]
        messages = share * self._trials.message_work[steps]
        largest = self._trials.largest[steps]
        wanted = np.where(left * largest > messages, messages / np.maximum(left, 1e-300), largest)
        rows: I64 = np.clip(np.ceil(wanted * (1 - ROUNDING)), 1, largest).astype(np.int64)
        return rows


def _changes(count: I64) -> tuple[I64, ...]:
    """A little or half less, a little or twice as much."""
    some: I64 = count // 8 + 1
    return -(count - count // 2), -some, some, count
