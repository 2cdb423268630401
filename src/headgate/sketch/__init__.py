"""Bounded statistics: what a slot remembers of the rows it saw, in a stated amount of memory."""
