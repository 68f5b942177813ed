"""goodput: the share of a run that ends up as training, between failures, checkpoints and restarts.

The same `Job` goes through a closed form (`analytic`) and through a SimPy simulation with seeds (`simulate`).
"""

from __future__ import annotations

from planner.goodput.analytic import best_interval, daly_interval, shares, young_interval
from planner.goodput.assess import Assessment, assess, effective_seconds, goodput_of, jobs_of
from planner.goodput.checkpoint import Checkpoints, checkpoints
from planner.goodput.job import LOSSES, Job
from planner.goodput.loading import DataNeed, data_need
from planner.goodput.policy import MODES, Policy
from planner.goodput.simulate import Simulated, simulate

__all__ = [
    "LOSSES", "MODES", "Assessment", "Checkpoints", "DataNeed", "Job", "Policy", "Simulated", "assess",
    "best_interval", "checkpoints", "daly_interval", "data_need", "effective_seconds", "goodput_of", "jobs_of",
    "shares", "simulate", "young_interval",
]  # fmt: skip
