"""Decisions between epochs: who places, cuts, scales and sizes. No engine, no storage."""
