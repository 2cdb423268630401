"""The queries as flows, through the public API only: a function each, a file for each kind."""

from __future__ import annotations

from headgate_lab.nexmark.queries import best, joins, stateless, totals, windows
from headgate_lab.nexmark.queries.totals import bids_by_rank, distinct_by_rank
from headgate_lab.nexmark.queries.winning import Winning, winning_bids
from headgate_lab.nexmark.query import Query

_OPEN = ("auction", "bid")
_WINNING = (winning_bids, Winning)
_RANKED = (bids_by_rank, distinct_by_rank)

QUERIES = {
    query.name: query
    for query in (
        Query("q0", stateless.q0, stateful=False),
        Query("q1", stateless.q1, stateful=False),
        Query("q2", stateless.q2, stateful=False),
        Query("q3", joins.q3, reads=("auction", "person")),
        Query("q4", best.q4, reads=_OPEN, key=("category",), helpers=_WINNING),
        Query("q5", windows.q5),
        Query("q6", best.q6, reads=_OPEN, helpers=_WINNING),
        Query("q7", windows.q7),
        Query("q8", windows.q8, reads=("auction", "person")),
        Query("q9", best.q9, reads=_OPEN, helpers=_WINNING),
        Query("q10", stateless.q10, stateful=False, writes=True),
        Query("q11", windows.q11),
        Query("q12", windows.q12),
        Query("q13", joins.q13, stateful=False),
        Query("q14", stateless.q14, stateful=False),
        Query("q15", totals.q15, key=("day",), helpers=_RANKED),
        Query("q16", totals.q16, key=("channel", "day"), helpers=_RANKED),
        Query("q17", totals.q17, key=("auction", "day"), helpers=(bids_by_rank,)),
        Query("q18", best.q18, key=("auction", "bidder")),
        Query("q19", best.q19, key=("auction", "rank")),
        Query("q20", joins.q20, reads=_OPEN),
        Query("q21", stateless.q21, stateful=False),
        Query("q22", stateless.q22, stateful=False),
        Query("q23", joins.q23, reads=("auction", "bid", "person")),
    )
}
