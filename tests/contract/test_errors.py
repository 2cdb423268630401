"""Every error is one family: told apart by type and field, and safe to cross processes."""

from __future__ import annotations

import copy
import importlib
import pickle
import pkgutil

import pytest

import headgate
from headgate import errors
from headgate.errors import HeadgateError

for _module in pkgutil.walk_packages(headgate.__path__, "headgate."):
    if not _module.name.startswith(
        (
            *("headgate.runtime", "headgate.offline", "headgate.demo", "headgate.cli"),
            *("headgate.routing._kernels", "headgate.state._kernels"),  # C functions, for ctypes
        )
    ):
        importlib.import_module(_module.name)


def family(kind: type[HeadgateError] = HeadgateError) -> list[type[HeadgateError]]:
    return [kind, *(k for child in kind.__subclasses__() for k in family(child))]


@pytest.mark.parametrize("kind", family())
def test_an_error_survives_pickling_with_its_type_sentence_and_fields(
    kind: type[HeadgateError],
) -> None:
    error = kind("what went wrong", operator="count", slot=3, pairs=["a", "b"], sample={"k": None})

    for back in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(back) is kind
        assert str(back) == "what went wrong"
        assert back.fields == error.fields
        assert (back.operator, back.slot, back.pairs) == ("count", 3, ["a", "b"])


@pytest.mark.parametrize("kind", family())
def test_every_error_says_what_it_means(kind: type[HeadgateError]) -> None:
    assert kind.__doc__
    assert issubclass(kind, HeadgateError)


def test_a_field_that_is_not_there_is_an_attribute_error() -> None:
    error = HeadgateError("no", slot=1)

    assert error.slot == 1
    with pytest.raises(AttributeError, match="epoch"):
        _ = error.epoch
    assert not hasattr(error, "epoch")


def test_the_family_tree_in_the_docstring_is_the_family() -> None:
    drawn = {
        line.split("─ ")[-1].split()[0]
        for line in (errors.__doc__ or "").splitlines()
        if "─" in line
    }
    named = {k.__name__ for k in family() if k.__module__ == "headgate.errors"}

    assert drawn == named - {"HeadgateError"}
