"""Search over pools of unlike devices: which of them, how many nodes of each, and what runs where."""

from planner.search.pools.search import Asked, search_pools

__all__ = ["Asked", "search_pools"]
