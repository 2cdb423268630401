"""Queues of k instances as machine code: when tuples end, and policies that look at queues."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True)
def finish_times(arrival, spent, target, free):  # type: ignore[no-untyped-def]
    """When each tuple ends: instances take theirs one after the other; `free` grows.

    `spent[i, j]` is what tuple i takes in instance j.
    """
    end = np.empty(len(arrival))
    for i in range(len(arrival)):
        j = target[i]
        free[j] = max(free[j], arrival[i]) + spent[i, j]
        end[i] = free[j]
    return end


@njit(cache=True)
def least_work(arrival, spent, free):  # type: ignore[no-untyped-def]
    """All times known: each tuple to the instance that ends it first."""
    target = np.empty(len(arrival), np.int32)
    for i in range(len(arrival)):
        best = 0
        least = np.inf
        for j in range(len(free)):
            end = max(free[j], arrival[i]) + spent[i, j]
            if end < least:
                least = end
                best = j
        free[best] = least
        target[i] = best
    return target


@njit(cache=True)
def shorter_of_two(arrival, spent, first, second):  # type: ignore[no-untyped-def]
    """Of two drawn instances, the one with fewer tuples waiting, as it is at this moment."""
    m, k = spent.shape
    target = np.empty(m, np.int32)
    ends = np.empty((k, m))
    head = np.zeros(k, np.int64)
    tail = np.zeros(k, np.int64)
    free = np.zeros(k)
    for i in range(m):
        for j in (first[i], second[i]):
            while head[j] < tail[j] and ends[j, head[j]] <= arrival[i]:
                head[j] += 1
        a, b = first[i], second[i]
        j = b if tail[b] - head[b] < tail[a] - head[a] else a
        free[j] = max(free[j], arrival[i]) + spent[i, j]
        ends[j, tail[j]] = free[j]
        tail[j] += 1
        target[i] = j
    return target


@njit(cache=True)
def load_aware(arrival, spent, draw, every_ms, capacity):  # type: ignore[no-untyped-def]
    """Drawn by weights 1 - queue / capacity, which are looked up every so often (as Storm does)."""
    m, k = spent.shape
    target = np.empty(m, np.int32)
    ends = np.empty((k, m))
    head = np.zeros(k, np.int64)
    tail = np.zeros(k, np.int64)
    free = np.zeros(k)
    weight = np.ones(k)
    due = every_ms
    for i in range(m):
        if arrival[i] >= due:
            due = arrival[i] + every_ms
            for j in range(k):
                while head[j] < tail[j] and ends[j, head[j]] <= arrival[i]:
                    head[j] += 1
                weight[j] = max(0.01, 1.0 - (tail[j] - head[j]) / capacity)
        point = draw[i] * weight.sum()
        j = 0
        while j < k - 1 and point >= weight[j]:
            point -= weight[j]
            j += 1
        free[j] = max(free[j], arrival[i]) + spent[i, j]
        ends[j, tail[j]] = free[j]
        tail[j] += 1
        target[i] = j
    return target
