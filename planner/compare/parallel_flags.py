"""What a measured run's flags say about its parallelism: kind of context parallelism, and switches of the preset.

Flags are those of Megatron-Core, Megatron-Bridge, NVIDIA's MLPerf submissions and torchtitan, dashes and
underscores alike, parted by semicolons as in a row's `other_flags`.
"""

from __future__ import annotations

import re

CP_KINDS: dict[str, str] = {"p2p": "ring", "a2a": "ulysses", "all_gather": "all-gather", "allgather": "all-gather"}
"""Megatron-Core's ``--cp-comm-type`` -> kind; ``a2a+p2p`` needs sizes that no flag here states."""

_CP = re.compile(r"\bcp(?:_comm_type)?[= ](\w+(?:\+\w+)?)")
_OVERLAP = re.compile(r"\btp_comm_overlap(?:=(\w+))?")
_ON = ("true", "1", "yes")


def _plain(flags: str) -> str:
    return flags.lower().replace("-", "_")


def cp_kind_of(flags: str) -> str:
    """Kind of context parallelism that the flags state; blank where they state none."""
    found = _CP.search(_plain(flags))
    return CP_KINDS.get(found[1], "") if found else ""


def parallel_switches_of(flags: str) -> dict[str, str]:
    """Switches that the flags set, by name.

    ``tp_comm_overlap`` and torchtitan's async TP cut GEMMs and their collectives into pieces that run side by
    side; "no tp/pp comm overlap" turns that and overlapped pipeline sends off.
    """
    text, found = _plain(flags), {}
    if "no tp/pp comm overlap" in text:
        found = {"tp_gemm_overlap": "false", "p2p_overlap": "false"}
    if stated := _OVERLAP.search(text):
        found["tp_gemm_overlap"] = str((stated[1] or "true") in _ON).lower()
    if "async tp" in text:
        found["tp_gemm_overlap"] = "true"
    return found
