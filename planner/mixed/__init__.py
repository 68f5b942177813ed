"""Layouts over pools of unlike devices, and unequal shares of a batch: priced by the one cost model, rank by rank.

An `Arrangement` says which pool every pipeline rank of every replica lies in and how many micro-batches each replica
runs. `predict` prices it: the blocks of each pool by `planner.priced` on that pool alone, put together rank by rank,
timed by the engines that time every other layout.
"""

from planner.mixed.arrangement import Arrangement, Replicas, arrangement_of_plan, in_order, is_plain
from planner.mixed.pricing import Pieces
from planner.mixed.step import Mixture, check, mixture, predict, step_of

__all__ = [
    "Arrangement", "Mixture", "Pieces", "Replicas", "arrangement_of_plan", "check", "in_order", "is_plain", "mixture",
    "predict", "step_of",
]  # fmt: skip
