"""PoTC on the rows of the edits job: a load per node, merging included.

Partial key grouping (Nasir et al., "The power of both choices", ICDE 2015), with its parameters:

- d = 2: a row goes to one of two nodes that two hashes of its key give. The hashes are independent,
  so for one key in `nodes` they are the same node, and there is no choice.
- Local estimates: each source knows only what it has sent itself, and takes the node of the two
  that got fewer rows from it. No source sees another's counts.
- A key's state is then on two nodes. What a minute's window left on a node that is not the key's
  first is sent there and merged at the end of the minute, as in Madsen et al. 2017.

Sources are those of the job: one input node (Madsen et al., section IV-A) sends to the first
operator; each of its nodes is a source of the second; a node that merges an article is a source
of the third. So there are 1, `nodes` and `nodes` of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headgate.arrays import I32, I64, U64
from headgate.routing.chooser import least_loaded
from headgate_lab.papers.edits_job import Edits, tops_in

INPUT_NODES = 1


class BothChoices:
    """Routes rows as they come; counts go on from call to call.

    `sent[operator][source]` is what a source has sent to each node.
    """

    def __init__(self, nodes: int, input_nodes: int = INPUT_NODES) -> None:
        self.nodes = nodes
        self.input_nodes = input_nodes
        sources = (input_nodes, nodes, nodes)
        self.sent = [np.zeros((count, nodes), np.int64) for count in sources]

    def loads(self, edits: Edits, minutes: range) -> Any:
        """What each node has done in some minutes: rows, entries it closed, partials it merged."""
        rows = slice(*np.searchsorted(edits.minute, [minutes.start, minutes.stop]))
        tops = tops_in(edits, minutes)
        from_input = np.arange(rows.start, rows.stop) % self.input_nodes
        geo = self.route(0, edits.editor[rows], from_input)
        article = self.route(1, edits.article[rows], geo)
        merger = _first(edits.entry_article[tops], self.nodes)
        title = self.route(2, edits.entry_title[tops], merger)
        return (
            np.bincount(geo, minlength=self.nodes)
            + self.counted(edits.minute[rows], edits.article[rows], article)
            + self.counted(edits.entry_minute[tops], edits.entry_title[tops], title)
        ).astype(np.float64)

    def route(self, operator: int, h: U64, source: I64 | I32) -> I32:
        """A node for each row, by the counts of the source that sends it."""
        first = _first(h, self.nodes)
        choices = np.where((h >> np.uint64(32)) % np.uint64(self.nodes) == 0, 1, 2)
        target = np.empty(len(h), np.int32)
        for one in np.unique(source):  # sources know nothing of each other: any order will do
            mine = np.flatnonzero(source == one)
            sent = self.sent[operator][one]
            target[mine] = least_loaded(h[mine], first[mine], choices[mine], sent)
        return target

    def counted(self, minute: I64, h: U64, node: I32) -> Any:
        """Rows, partial entries that are closed, and partials that a key's first node merges."""
        cells = np.stack([minute.astype(np.uint64), h, node.astype(np.uint64)])
        _, key, where = np.unique(cells, axis=1)
        where, merger = where.astype(np.int64), _first(key, self.nodes)
        merged = np.bincount(merger[merger != where], minlength=self.nodes)
        closed = np.bincount(where, minlength=self.nodes)
        return np.bincount(node, minlength=self.nodes) + closed + merged


def _first(h: U64, nodes: int) -> I32:
    found: I32 = (h % np.uint64(nodes)).astype(np.int32)
    return found
