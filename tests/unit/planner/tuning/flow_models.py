"""Flows of the paper with plausible measurements, and strategies for small random ones."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st

from headgate.planner.tuning.cost_model import EngineCosts, FlowModel, Step, Stream

# 1 Gb/s is 8 ns a byte. 12 M records took 1250 s without batching: 104 us each, nearly all of it n.
STORM = EngineCosts(message_s=104.2e-6, byte_s=8e-9)


def linear_road(spout_rate: float = 1.06e6) -> FlowModel:
    """The paper's Linear Road: 600 MB of 12 M records are 50 bytes each."""
    return FlowModel(
        (
            Step("spout", source_rate=spout_rate),
            Step("parse", 17.7e-6),  # with one instance 6 times the rate of single tuples
            Step("agg", 6.2e-6),
            Step("mv", 5e-6),
            Step("toll", 5e-6),
            Step("block", 5e-6),
        ),
        (
            Stream("spout", "parse", 1, 50),
            Stream("parse", "agg", 1, 32),
            Stream("agg", "mv", 1e-4, 40),
            Stream("agg", "block", 1e-4, 40),
            Stream("mv", "toll", 1, 40),
        ),
    )


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
