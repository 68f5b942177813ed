"""Measured against predicted: one plan, several plans, and published measurements."""

from planner.compare.comparison import PairOrder, RankingCheck, compare, compare_many
from planner.compare.validation import ValidationResult, validate

__all__ = ["PairOrder", "RankingCheck", "ValidationResult", "compare", "compare_many", "validate"]
