"""Declared flows as inert data."""
