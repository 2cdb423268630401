"""`Update(state="...")`: state as typed columns that anybody can read."""

from datetime import UTC, datetime

import pytest

import headgate as hg
from headgate.errors import HeadgateError
from headgate.testing import ListSource, run

ROWS = [{"user": "u", "n": 2}, {"user": "v", "n": 3}, {"user": "u", "n": 5}]
STATE = "total bigint, last timestamp, note string"


def flow_of(function, epochs, **options):
    flow = hg.Flow("f")
    rows = flow.source(ListSource("user string, n bigint", epochs))
    update = hg.Update(
        function, output="user string, total bigint", rows_as="dicts", state=STATE, **options
    )
    rows.key_by("user").process(update, name="totals").to_memory("out")
    return flow


def total(key, rows, state):
    before = state or {"total": 0, "last": None, "note": None}
    now = before["total"] + sum(row["n"] for row in rows)
    return {"total": now, "last": datetime(2026, 1, 1, tzinfo=UTC), "note": key}, None


def test_the_state_is_a_dict_and_can_be_read_column_by_column():
    done = run(flow_of(total, [ROWS, ROWS]))
    found = {row["user"]: (row["total"], row["note"]) for row in done.state("totals")}
    assert found == {"u": (14, "u"), "v": (6, "v")}


def test_a_tuple_goes_by_the_order_of_the_columns():
    def by_place(key, rows, state):
        return (len(rows) + (state["total"] if state else 0), None, None), None

    done = run(flow_of(by_place, [ROWS, ROWS]))
    assert {row["user"]: row["total"] for row in done.state("totals")} == {"u": 4, "v": 2}


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ({"total": 1}, "last, note"),
        ((1, 2), "2 values"),
        (7, "dict or a tuple"),
        ({"total": "x", "last": None, "note": None}, "'total'"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_with_the_rows_of_its_key(state, why):
    def some(key, rows, before):
        if key == "v":
            return state, [{"user": key, "total": 0}]
        return total(key, rows, before)

    flow = flow_of(some, [ROWS])
    with pytest.raises(HeadgateError, match=why):
        run(flow)
    flow = flow_of(some, [ROWS])
    flow.dead_letters().to_memory("dead")
    done = run(flow)
    assert [row["user"] for row in done.state("totals")] == ["u"]
    assert len(done.rows("dead")) == 1 and done.rows("out") == []
