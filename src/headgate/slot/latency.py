"""How old rows are when their epoch begins: counted in bins, so that tasks can add them up.

The bins grow with the age, as in a DDSketch: 32 for each doubling, so a value read from one is off
by at most 1/64, and ages below 64 ms are exact. The bin of an age is the head of its floating-point
bits: no logarithm, so every machine counts alike, and 200,000 rows take about a millisecond.

The rest of a row's way, from the plan's clock to the sinks, is the same for all rows of an epoch.
So quantiles of latencies are those of ages, and that time on top.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

NO_TIME = "none"  # in place of a bin: rows whose time of arrival is null
HEAD_BITS = 5  # of the 23 of a float32's mantissa: 2^5 bins for each doubling
ERROR = 1 / (2 << HEAD_BITS)  # of a value that is read from a bin, relative to the age
_CUT = 23 - HEAD_BITS
_FIRST = int(np.float32(1).view(np.int32)) >> _CUT  # where an age of 1 ms falls


def ages_in_bins(arrivals: pa.Array, now_ms: int) -> dict[str, int]:
    """Rows by the bin of their age, in order; an arrival after `now_ms` has the age 0.

    Examples:
        >>> ages_in_bins(pa.array([1000, 1000, 900, None], pa.timestamp("ms")), 1000)
        {'none': 1, '0': 2, '211': 1}
    """
    counts: dict[str, int] = {}
    if arrivals.null_count:
        counts[NO_TIME] = arrivals.null_count
        arrivals = arrivals.drop_null()
    if not len(arrivals):
        return counts
    kind = pa.timestamp("ms", arrivals.type.tz)
    in_ms = arrivals.cast(options=pc.CastOptions(kind, allow_time_truncate=True))
    ages = now_ms - in_ms.view(pa.int64()).to_numpy()
    np.maximum(ages, 0, out=ages)
    bins = ages.astype(np.float32).view(np.int32)
    bins >>= _CUT
    bins -= _FIRST - 1  # that of 1 ms is 1
    np.maximum(bins, 0, out=bins)
    rows = np.bincount(bins)
    for number in np.flatnonzero(rows).tolist():
        counts[str(number)] = int(rows[number])
    return counts


def age_ms(number: int) -> float:
    """The middle of a bin's ages.

    Examples:
        >>> age_ms(0), age_ms(1), age_ms(211)
        (0.0, 1.0, 100.5)
    """
    if number == 0:
        return 0.0
    doublings, part = divmod(number - 1, 1 << HEAD_BITS)
    width = 2.0 ** (doublings - HEAD_BITS)
    return 2.0**doublings + part * width + max(0.0, width - 1) / 2


def mean_and_quantiles(counts: Mapping[str, int], shares: Sequence[float]) -> list[float]:
    """The mean age, then for each share the least age that so large a share of rows does not pass.

    Rows without a time count for nothing; there must be others.
    """
    known = sorted((int(name), rows) for name, rows in counts.items() if name != NO_TIME)
    ages = np.array([age_ms(number) for number, _ in known])
    rows = np.array([rows for _, rows in known], np.int64)
    up_to = np.cumsum(rows)
    ranks = np.ceil(np.array(shares) * up_to[-1]).clip(1)
    found = ages[np.searchsorted(up_to, ranks)]
    return [float(ages @ rows / up_to[-1]), *found.tolist()]
