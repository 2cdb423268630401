"""Strategies for engines and small random flows."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st

from headgate.planner.tuning.cost_model import EngineCosts, FlowModel, Step, Stream

costs = st.builds(
    EngineCosts,
    message_s=st.floats(1e-7, 1e-3),
    byte_s=st.floats(0, 1e-7),
    message_bytes_max=st.integers(64, 1 << 16),
)


@st.composite
def chains(draw: st.DrawFn, steps_max: int = 3) -> FlowModel:
    """A source and a chain of steps with a shortcut now and then."""
    count = draw(st.integers(1, steps_max))
    names = ["source", *(f"op{i}" for i in range(count))]
    steps = [Step("source", source_rate=draw(st.floats(1, 1e6)))]
    steps += [Step(name, draw(st.floats(1e-7, 1e-3))) for name in names[1:]]
    pairs = list(pairwise(names))
    if count > 1 and draw(st.booleans()):
        pairs.append(("source", names[-1]))
    streams = [Stream(p, c, draw(st.floats(0.01, 3)), draw(st.floats(1, 1000))) for p, c in pairs]
    return FlowModel(tuple(steps), tuple(streams))


def chain_of(count: int, *, slow: int | None = None) -> FlowModel:
    """A source and so many steps in a row, each of 10 us; `slow` is the number of one of 80."""
    names = ["source", *(f"op{i}" for i in range(count))]
    steps = [Step(name, 8e-5 if name == f"op{slow}" else 1e-5) for name in names[1:]]
    streams = [Stream(producer, consumer) for producer, consumer in pairwise(names)]
    return FlowModel((Step("source", source_rate=1e4), *steps), tuple(streams))
