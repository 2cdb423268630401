"""The queries as flows, through the public API only: a function each, a file for each kind."""

from __future__ import annotations

from headgate_lab.nexmark.queries import best, stateless, windows
from headgate_lab.nexmark.query import Query

QUERIES = {
    query.name: query
    for query in (
        Query("q0", stateless.q0, stateful=False),
        Query("q2", stateless.q2, stateful=False),
        Query("q12", windows.q12),
        Query("q18", best.q18, key=("auction", "bidder")),
    )
}
