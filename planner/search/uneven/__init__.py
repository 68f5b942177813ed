"""Uneven stages: which layers each virtual stage holds and how many of them it recomputes."""

from planner.search.uneven.candidates import balanced_candidates, joined, least_seconds
from planner.search.uneven.plain import with_balanced_stages
from planner.search.uneven.slowest import balanced

__all__ = ["balanced", "balanced_candidates", "joined", "least_seconds", "with_balanced_stages"]
