"""What a recipe holds, what its digest depends on, and what is refused of a saved one."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from zephon_core.batching.lengths import LengthTable
from zephon_core.batching.options import TokenBatchOptions
from zephon_core.batching.plan.batch_ranges import BatchRanges
from zephon_core.batching.plan.recipe import LARGEST_SETTING, LARGEST_WORLD, PlanRecipe, PlanSource, Reshard
from zephon_core.errors import StateError

TABLE = LengthTable.of(np.arange(1, 9, dtype=np.int32), source_id="texts")
RECIPE = PlanRecipe(PlanSource.of_table(TABLE), 3, 1, TokenBatchOptions(maximum_tokens=64), 2, 4, 64)
RESHARDED = replace(RECIPE, reshards=(Reshard(5, 3, BatchRanges.of([1, 2, 9])), Reshard(7, 1, BatchRanges.of([]))))


@pytest.mark.parametrize("recipe", [RECIPE, RESHARDED, replace(RECIPE, seed=None)])
def test_a_recipe_comes_back_from_json(recipe: PlanRecipe) -> None:
    read = PlanRecipe.of(json.loads(json.dumps(recipe.to_json())))
    assert (read, read.digest) == (recipe, recipe.digest)
    read.refuse_other(recipe)


def test_every_setting_is_in_the_digest() -> None:
    others = [
        replace(RECIPE, source=replace(RECIPE.source, **{name: value}))
        for name, value in (("source_id", "others"), ("count", 9), ("lengths_sha256", "0" * 64))
    ]
    others += [replace(RECIPE, **change) for change in ({"seed": None}, {"epoch": 2}, {"world_size": 3}, {"bucket_width": 5})]
    others += [replace(RECIPE, window_steps=1), replace(RECIPE, options=TokenBatchOptions(maximum_tokens=65)), RESHARDED]
    assert len({recipe.digest for recipe in [RECIPE, *others]}) == len(others) + 1
    for other in others:
        with pytest.raises(StateError):
            other.refuse_other(RECIPE)


def test_what_the_source_is_called_shuffles_nothing() -> None:
    renamed = replace(RECIPE, source=replace(RECIPE.source, source_id="others"))
    assert renamed.digest != RECIPE.digest
    assert renamed.shuffling_key == RECIPE.shuffling_key != replace(RECIPE, epoch=2).shuffling_key


def test_another_epoch_begins_on_the_present_world() -> None:
    later = RESHARDED.of_epoch(4)
    assert (later.epoch, later.world_size, later.reshards) == (4, RESHARDED.last_world_size, ())
    assert RECIPE.last_world_size == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 2}, "recipe.version: is 2, expected 1"),
        ({"order_version": 7}, "recipe.order_version: is 7, expected 1"),
        ({"source": 5}, "recipe.source: is 5"),
        ({"seed": -1}, "recipe.seed: is -1"),
        ({"epoch": True}, "recipe.epoch: is True"),
        ({"options": {}}, "recipe.options: lacks maximum_tokens"),
        ({"options": {"maximum_tokens": 0, "maximum_examples": None, "layout": "packed"}}, "recipe.options.maximum_tokens: is 0"),
        ({"options": {"maximum_tokens": 1, "maximum_examples": None, "layout": 3}}, "recipe.options.layout: is 3"),
        ({"world_size": 0}, "recipe.world_size: is 0"),
        ({"world_size": LARGEST_WORLD + 1}, "recipe.world_size: is "),
        ({"bucket_width": LARGEST_SETTING + 1}, "recipe.bucket_width: is "),
        ({"window_steps": 0}, "recipe.window_steps: is 0"),
        ({"reshards": 4}, "recipe.reshards: is a int"),
        ({"reshards": [{"step": 1}]}, "recipe.reshards.0.: lacks world_size, skipped"),
        ({"reshards": [{"step": 1, "world_size": 0, "skipped": []}]}, "recipe.reshards.0..world_size: is 0"),
        ({"more": 1}, "recipe: holds more"),
    ],
)
def test_other_recipes_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(StateError, match=message):
        PlanRecipe.of(RECIPE.to_json() | changes)
    with pytest.raises(StateError, match="recipe: is "):
        PlanRecipe.of(None)


def test_the_remedy_says_how_to_go_on() -> None:
    for other, message in ((replace(RECIPE, epoch=2), "GlobalBatchPlan.restore"), (replace(RECIPE, world_size=3), "reshard")):
        with pytest.raises(StateError, match=message):
            other.refuse_other(RECIPE)
