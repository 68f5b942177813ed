"""When a search finds nothing: what excludes the last candidates, and the nearest request that fits."""

from planner.search.nothing.ask import Ask
from planner.search.nothing.explain import nothing

__all__ = ["Ask", "nothing"]
