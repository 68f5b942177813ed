"""Search: the same flow over every legal layout at once."""

from planner.search.result import Row, SearchResult
from planner.search.search import search
from planner.search.space import Space

__all__ = ["Row", "SearchResult", "Space", "search"]
