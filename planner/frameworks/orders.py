"""Orders in which world ranks unfold into the axes of a layout; frameworks have some of them."""

from __future__ import annotations

from itertools import permutations

DENSE_AXES: tuple[str, ...] = ("tp", "cp", "dp", "pp")
"""Axes that world ranks unfold into, the fastest first in the default order of every framework."""
ORDERS: tuple[str, ...] = tuple("-".join(axes) for axes in permutations(DENSE_AXES))
"""Every order of them, the default first."""
ONE_ORDER: tuple[str, ...] = ORDERS[:1]
