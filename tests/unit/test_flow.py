"""What `Flow.start` takes, and what it says before anything runs."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

import pytest

import headgate as hg
from headgate.errors import DeclarationError

START = inspect.signature(hg.Flow.start).parameters


def start(**given: Any) -> None:
    hg.Flow("f").start(None, checkpoint="nowhere", **given)  # type: ignore[arg-type]


def test_start_has_few_parameters_that_say_their_types() -> None:
    named = [p for p in START.values() if p.kind is inspect.Parameter.KEYWORD_ONLY]

    assert len(named) <= 8
    assert all(
        p.annotation not in (inspect.Parameter.empty, "Any")
        for p in START.values()
        if p.name != "self"
    )
    told = hg.Flow.start.__doc__ or ""
    assert all(f"{p.name}: " in told for p in named)


def test_a_start_that_says_nothing_is_managed_and_leaves_the_rest_open() -> None:
    assert START["manager"].default == hg.Manager()
    assert START["slots"].default is START["rows_per_epoch"].default is None


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"slot": 2}, "did you mean slots=?"),
        ({"rows_per_epochs": 2}, "did you mean rows_per_epoch=?"),
        ({"keep_manifest": 2}, "did you mean keep_manifests=?"),
        ({"warm_dir": "off"}, "give options=hg.Options(warm_dir=...)"),
        ({"slots_max": 4}, "give slots=hg.Scaling(max_slots=4)"),
        ({"batch": "auto"}, "leave rows_per_epoch= out, and it is chosen while the flow runs"),
        ({"batch": 100}, "give options=hg.Options(batch_rows=100)"),
        ({"zzz": 1}, "conf, clock_ms"),
    ],
)
def test_a_word_that_start_does_not_know_gets_the_one_to_use(
    given: dict[str, Any], told: str
) -> None:
    with pytest.raises(DeclarationError) as caught:
        start(**given)

    (name,) = given
    assert str(caught.value).startswith(f"start takes no {name}=; ")
    assert str(caught.value).endswith(told) and caught.value.option == name


@pytest.mark.parametrize("given", [4, "auto"])
def test_parallelism_is_a_number_for_each_operator(given: Any) -> None:
    with pytest.raises(DeclarationError, match="slots= is for all of them together"):
        start(parallelism=given)


@pytest.mark.parametrize(
    ("settings", "wrong", "nearest"),
    [
        (hg.Options, "batch", "batch_rows"),
        (hg.Options, "keep_manifest", "keep_manifests"),
        (hg.Manager, "planer", "planner"),
        (hg.PlannerSettings, "move_max", "moves_max"),
        (hg.Scaling, "maxslots", "max_slots"),
    ],
)
def test_settings_name_the_nearest_field(settings: Any, wrong: str, nearest: str) -> None:
    with pytest.raises(DeclarationError, match=rf"takes no {wrong}=; did you mean {nearest}=\?"):
        settings(**{wrong: 1})


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("every_epochs", "give every="),
        ("moves_max", "give tuning=hg.PlannerSettings(moves_max=...)"),
        ("scaling", "give slots=hg.Scaling(...) to flow.start"),
    ],
)
def test_old_words_of_a_manager_say_where_they_went(wrong: str, told: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        hg.Manager(**{wrong: 1})  # type: ignore[arg-type]

    assert str(caught.value) == f"Manager takes no {wrong}=; {told}"


@pytest.mark.parametrize("settings", [hg.Options, hg.Manager, hg.PlannerSettings, hg.Scaling])
def test_every_field_of_the_settings_is_documented(settings: Any) -> None:
    told = settings.__doc__

    assert all(f"        {name}: " in told for name in (field.name for field in fields(settings)))


def test_a_key_is_not_shown() -> None:
    assert "secret" not in repr(hg.Options(key="secret"))
