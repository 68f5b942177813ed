"""Many searches at once: over sizes, models, clusters or scenarios, on all cores or a Ray cluster, resumable."""

from planner.sweep.case import Case, solve
from planner.sweep.engines import ENGINES
from planner.sweep.run import Outcome, run
from planner.sweep.store import Store

__all__ = ["ENGINES", "Case", "Outcome", "Store", "run", "solve"]
