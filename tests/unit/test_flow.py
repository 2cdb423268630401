"""What `Flow.start` says before anything runs."""

from __future__ import annotations

from typing import Any, cast

import pytest

import headgate as hg
from headgate.errors import DeclarationError


@pytest.mark.parametrize(
    ("option", "told"),
    [("keep_manifest", "did you mean keep_manifests=?"), ("zzz", "start has no option zzz=")],
)
def test_an_option_that_start_does_not_have_is_named_with_the_nearest(
    option: str, told: str
) -> None:
    nobody = cast(Any, None)
    with pytest.raises(DeclarationError) as caught:
        hg.Flow("f").start(nobody, checkpoint="nowhere", **{option: 1})

    assert str(caught.value).endswith(told) and caught.value.option == option
