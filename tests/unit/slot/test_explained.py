"""Flows, streams and tables say what they are, in text and in notebooks."""

from __future__ import annotations

import numpy as np

import headgate as hg
from headgate.commit.facts import PlanFacts
from headgate.planner.allocation.plan import Plan
from headgate.slot.compile import compile_flow
from headgate.slot.explained import explained_run
from headgate.testing import ListSource, run


def declared() -> tuple[hg.Flow, hg.Stream]:
    flow = hg.Flow("trends")
    rows = flow.source(ListSource("k string, n bigint", []), name="posts")
    kept = rows.filter("n > 3 and k <> '<b>'", name="liked").with_columns(m="n * 2", name="twice")
    counted = kept.key_by("k").process(hg.Count(), name="count")
    counted.to_table("count")
    return flow, counted


def test_a_flow_explains_every_step() -> None:
    flow, _ = declared()

    text = str(flow.explain())

    assert text.splitlines()[0] == "Flow 'trends'"
    lines = {line.split()[0]: line for line in text.splitlines()[2:]}
    assert "source: ListSource" in lines["posts"] and "n int64" in lines["posts"]
    assert "filter" in lines["liked"] and "n > 3" in lines["liked"]
    assert "m = 'n * 2'" in lines["twice"]
    assert "Count(" in text and "twice (by k)" in text and "sink: table" in text


def test_html_shows_what_users_wrote_and_obeys_none_of_it() -> None:
    flow, _ = declared()

    html = flow._repr_html_()

    assert "<b>'" not in html and "&lt;b&gt;" in html and html.count("<tr>") == 6


def test_a_running_flow_tells_where_its_operators_are() -> None:
    flow, _ = declared()
    program = compile_flow(flow.graph())

    text = str(explained_run(program, "now", {"count": (0, 2)}, {"count": 7}, ["Epoch 3: moved"]))

    assert "0, 2" in text and "7 keys placed" in text and text.endswith("Epoch 3: moved")


def test_values_say_what_they_are() -> None:
    flow, counted = declared()

    assert repr(flow) == ("<Flow 'trends': 1 sources, 3 operators, 1 sinks; explain() shows them>")
    assert repr(counted) == "<Stream of count: k string, count int64>"
    assert repr(counted.key_by("k")) == "<Stream of count, by k: k string, count int64>"
    assert counted.key_by("k")._repr_html_() == (
        "<b>Stream of count, by k</b><table><tr><td>k</td><td>string</td></tr>"
        "<tr><td>count</td><td>int64</td></tr></table>"
    )
    assert "0 keys placed" in repr(hg.hash_table(4))
    assert "<tr><td>3</td><td>0</td><td>256</td></tr>" in hg.hash_table(4)._repr_html_()


def test_plans_and_decisions_say_what_changes_and_why() -> None:
    plan = Plan(np.zeros(3, np.int32), "milp", 1.5, 0.5, 0.25, 1, 2.0, ("<unit> 7: 0 -> 1",))
    facts = PlanFacts(planner="milp", why="loads <differ>")
    decision = hg.Decision({"count": hg.hash_table(4)}, plan=facts, slots=3, gone=(1,))

    assert repr(plan).startswith("<Plan of milp: 1 units move; load distance 1.50 %")
    assert "<li>&lt;unit&gt; 7: 0 -&gt; 1</li>" in plan._repr_html_()
    assert repr(hg.Decision()) == "<Decision: all stays as it is>"
    assert "count gets <RoutingTable" in repr(decision)
    assert "3 slots, of which [1] leave" in repr(decision) and "loads <differ>" in repr(decision)
    assert "planner milp: loads &lt;differ&gt;" in decision._repr_html_()


def test_a_run_of_the_kit_says_what_it_made() -> None:
    flow = hg.Flow("trends")
    rows = flow.source(ListSource("k string", [[{"k": "a"}, {"k": "b"}], [{"k": "a"}]]))
    rows.key_by("k").process(hg.Count(), name="count").to_memory("counts")

    assert repr(run(flow)) == "<LocalRun of 'trends': 2 epochs; 3 rows of counts>"


def test_a_join_shows_what_was_asked_for() -> None:
    flow = hg.Flow("joins")
    left = flow.source(ListSource("k bigint, t timestamp", []), event_time="t").key_by("k")
    right = flow.source(ListSource("id bigint, at timestamp", []), event_time="at").key_by("id")
    told = left.process(hg.Count(emit="changes"), name="counts").key_by("k")
    left.join(right, within=("-10 minutes", "1 second"), how="left", name="near").discard()
    left.join(right, as_of=True, name="as_of").discard()
    told.join(right, name="changes").discard()

    shown = {row[0]: row[1] for row in flow.explain().rows}

    assert shown["near"] == "join(how='left', within=('-600 seconds', '1 seconds'))"
    assert shown["as_of"] == "join(how='inner', as_of=True, times=('t', 'at'))"
    assert shown["changes"] == "join(how='inner')"
