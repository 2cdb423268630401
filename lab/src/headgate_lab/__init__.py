"""The laboratory of Headgate: papers' experiments, benchmarks, peers, other planners, a simulator.

It imports the product; the product never imports it. Planners register as entry points
(`headgate.planner.registry`).
"""

__version__ = "0.2.0"
