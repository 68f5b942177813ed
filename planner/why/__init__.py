"""Why one plan beats another, phase by phase and byte by byte; and which change would help a plan most."""

from planner.why.changes import CHANGES, Change
from planner.why.difference import Difference, Told, difference
from planner.why.sensitivity import Effect, sensitivity

__all__ = ["CHANGES", "Change", "Difference", "Effect", "Told", "difference", "sensitivity"]
