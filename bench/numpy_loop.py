"""A fixed loop over NumPy arrays: how fast this machine is while the figures beside it are taken."""

from __future__ import annotations

import numpy as np


def main() -> None:
    """Two hundred passes over 200,000 doubles, and forty sorts of them: about 0.3 s on a core of 2020."""
    values = np.linspace(0.0, 1.0, 200_000)
    for _ in range(200):
        values = np.sqrt(values * values + 1e-3)
    mixed = np.sin(np.arange(200_000) * 1.7)
    for _ in range(40):
        np.sort(mixed)


if __name__ == "__main__":
    main()
