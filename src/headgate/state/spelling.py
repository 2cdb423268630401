"""One spelling per key. Key hashes know one zero and one NaN; floats have two and very many.

What is kept for a key must follow from the key alone: which row brought it first differs between a
warm copy and one rebuilt from files, and files are named by their bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def one_spelling(keys: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Key values as the state keeps them: -0.0 becomes 0.0, every NaN the same one."""
    if keys.dtype.kind != "f":
        return keys
    with np.errstate(invalid="ignore"):  # a signalling NaN is a NaN like the others
        spelled = keys + np.zeros(1, keys.dtype)
    spelled[np.isnan(spelled)] = np.nan
    return spelled
