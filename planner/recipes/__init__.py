"""Recipes: what to start so that a plan's advice runs, as files a user can read, copy and apply.

service.py says what is to be served, placement.py on which nodes · engines.py how each engine is launched and with
which arguments · shell.py, compose.py, kubernetes.py wrap them · benchmark.py replays the plan's traffic against the
result · files.py puts the files of one target together. Engine arguments come from `planner.serving_engines` alone,
whose tables name every flag that may be written; a launch command adds the model and the address to listen on,
nothing else.
"""

from planner.recipes.files import TARGETS, Recipe, RecipeError, RecipeFile, recipe, targets_of
from planner.recipes.service import Pool, Service

__all__ = ["TARGETS", "Pool", "Recipe", "RecipeError", "RecipeFile", "Service", "recipe", "targets_of"]
