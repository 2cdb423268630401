"""Who may change the number of slots: one loop at most."""

from __future__ import annotations

import pytest

import headgate as hg
from headgate.errors import DeclarationError
from headgate.runtime.start import check_one_owner_of_slots

SCALES = hg.Manager("allocation", scaling=hg.Scaling(max_slots=4))


def test_two_loops_that_change_slots_are_refused_with_a_way_out() -> None:
    with pytest.raises(DeclarationError, match=r"keep one: slots=N with scaling=.*'auto' with"):
        check_one_owner_of_slots("auto", SCALES)


@pytest.mark.parametrize(
    ("parallelism", "manager"),
    [(None, SCALES), (2, SCALES), ("auto", None), ("auto", hg.Manager()), (None, None)],
)
def test_one_loop_or_none_is_fine(parallelism: object, manager: hg.Manager | None) -> None:
    check_one_owner_of_slots(parallelism, manager)  # type: ignore[arg-type]
