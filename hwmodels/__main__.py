"""``python -m hwmodels``."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from hwmodels.cli.app import main

    sys.exit(main())
