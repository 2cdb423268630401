"""Optimizers of batch size and parallelism to compare with, and the paper's limits."""
