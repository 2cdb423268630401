"""Benchmarks: each module is one question, measured side by side, with its raw numbers."""
