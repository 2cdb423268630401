"""Planners to compare with, each as published: hash, Flux, COLA. PoTC routes rows, not units."""

from headgate.planner.allocation.baselines.cola import ColaPlanner
from headgate.planner.allocation.baselines.flux import FluxPlanner
from headgate.planner.allocation.baselines.hashed import HashPlanner

__all__ = ["ColaPlanner", "FluxPlanner", "HashPlanner"]
