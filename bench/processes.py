"""Whole processes: their wall clock, peak memory and output."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

_OF_A_CHECKOUT = ("PYTHONDONTWRITEBYTECODE",)
"""Variables that those who build software set and those who use it do not. With this one what was never compiled would
be compiled in every run: the libraries as well, whose compiled files an installation may have left to the first run."""


@dataclass(frozen=True, slots=True)
class Run:
    """One process that has ended.

    Attributes
    ----------
    wall_s : float
        From before it was started until it was gone.
    peak_bytes : int
        Largest resident set (`ru_maxrss`, which Linux counts in KiB).
    code : int
    out, err : str
    """

    wall_s: float
    peak_bytes: int
    code: int
    out: str
    err: str


def run(arguments: list[str]) -> Run:
    """Run ``python ARGUMENTS`` in the root of the checkout and wait for it.

    Parameters
    ----------
    arguments : list of str
        What follows the interpreter, this one.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        environment = {name: value for name, value in os.environ.items() if name not in _OF_A_CHECKOUT}
        environment["OMP_NUM_THREADS"] = "1"
        start = time.perf_counter()
        process = subprocess.Popen([sys.executable, *arguments], cwd=ROOT, stdout=out, stderr=err, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)  # it is gone: Popen must not wait for it again
        for stream in (out, err):
            stream.seek(0)
        return Run(wall, usage.ru_maxrss * 1024, process.returncode, out.read(), err.read())
