"""Numbers that Python code states: one of another type is a fault with field, value and what would work."""

from __future__ import annotations

from typing import Any

import numpy as np

from hwmodels.errors import Fault


def is_whole(value: object) -> bool:
    """Whether a value is a whole number: an int or one of numpy's, but no truth value."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether a value is a number, a float too, but no truth value."""
    return is_whole(value) or isinstance(value, float | np.floating)


def number_fault(name: str, value: Any, where: str, example: float, *, whole: bool = True) -> Fault:
    """The fault of a field that is no number, or no whole one; the remedy is the number it reads as, else `example`.

    Parameters
    ----------
    name, value
        The field and what it was given.
    where : str
        The field's place, ``"workload.gbs"``.
    example : float
        A value that would work.
    whole : bool
        A whole number is expected.
    """
    near: float = example
    if isinstance(value, str | float) and not isinstance(value, bool):
        try:
            read = float(value)
        except ValueError:
            read = float("nan")
        if read.is_integer():
            near = int(read)
        elif not whole and read == read:
            near = read
    why = f"{name} is a {'whole ' if whole else ''}number"
    return Fault(f"{name} is {value!r}", where, f"{why}, not {type(value).__name__}", f"{name}={near}")
