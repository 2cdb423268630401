"""What a join holds, and whom DuckDB has meet."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.operator.join_state import INDEX, UNTIL, Index, side_schema, take_out
from headgate.operator.rows import KeyedRows
from headgate.state.layout import StateSchema
from headgate.state.session import PrivateSession
from headgate.testing import run
from headgate.topology.schema import to_schema
from strategies import examples
from unit.operator.join_oracle import KINDS, LEFT, RIGHT, draw, flow_of


def test_duckdb_joins_the_same_rows():
    duckdb = pytest.importorskip("duckdb")
    left, right = draw(11, epochs=6)
    tables = {
        name: pa.Table.from_pylist([r for rows in side for r in rows], schema=to_schema(kind))
        for name, side, kind in (("l", left, LEFT), ("r", right, RIGHT))
    }
    with duckdb.connect() as db:
        for name, table in tables.items():
            db.register(name, table)
        sql = """
            select k, v, w from l join r on k = id
            and r."at" between t - interval 30 second and t + interval 45 second
        """
        wanted = Counter(db.execute(sql).fetchall())
    done = run(flow_of(left, right, **KINDS["interval"]), slots=3, check_purity=False)
    assert Counter((r["k"], r["v"], r["w"]) for r in done.rows("out")) == wanted


rows_of_ring = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), max_size=8)


@examples(30)
@given(st.lists(st.tuples(rows_of_ring, st.integers(0, 9)), max_size=5))
def test_a_ring_holds_what_was_put_in_and_not_taken_out(steps):
    """Rows (key, until) come, and those before a time leave; no ring has a hole."""
    index = StateSchema(pa.schema({"k": pa.int64()}), INDEX)
    side = side_schema(index, {"v": pa.int64()}, UNTIL)
    held = []
    with PrivateSession(index) as state, PrivateSession(side) as rows:
        state.beside = {"left": rows, "right": PrivateSession(side)}
        for number, (come, below) in enumerate(steps):
            if come:
                keys = pa.RecordBatch.from_pydict({"k": pa.array([k for k, _ in come], pa.int64())})
                ring = Index(state, KeyedRows(keys, ["k"]).groups)
                values = [100 * number + at for at in range(len(come))]
                until = np.array([u for _, u in come])
                ring.append(0, ring.groups.codes, {UNTIL: until, "v": np.array(values)})
                ring.write()
                held += [(k, u, v) for (k, u), v in zip(come, values, strict=True)]
            gone = rows.select(UNTIL, below=below)
            if len(gone):
                take_out(state, 0, gone)
            held = [row for row in held if row[1] >= below]
            found = rows.all().batch().to_pylist()
            assert sorted((r["k"], r[UNTIL], r["v"]) for r in found) == sorted(held)
            counts = Counter(k for k, _, _ in held)
            for row in state.all().batch().to_pylist():
                first, count = row["left_first"], row["left_count"]
                assert count == counts.pop(row["k"])
                places = sorted(r["@seq"] for r in found if r["k"] == row["k"])
                assert places == list(range(first, first + count))
            assert not counts
