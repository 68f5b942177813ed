"""Which implementation of a kernel or collective a measured row timed: the one documented table.

`implementation` is the only code that reads the words of ``source``, ``notes``, ``kernel`` and ``lib`` cells. The first
line of `TABLE` whose pattern is found in ``source | notes | kernel`` names the framework, the algorithm
and how it was launched; the version is the number that follows the framework's name in ``source``.
The ``key`` is what laws take as `impl`; the version is not part of it unless a line says so, because
coefficients that follow a version cannot be known for the next one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Implementation:
    """Who computed, how.

    Attributes
    ----------
    framework : str
        ``trtllm``, ``sglang``, ``vllm``, ``vidur``, ``nccl`` ...; empty when the row does not say.
    version : str
        As the source spells it; empty when it does not.
    algorithm : str
        Kernel library or algorithm within the framework; empty for its default.
    mode : str
        ``eager``, ``graph``, ``burst`` (short runs at boost clock) or empty (sustained, or not stated).
    """

    framework: str
    version: str = ""
    algorithm: str = ""
    mode: str = ""

    @property
    def key(self) -> str:
        """Framework, algorithm and mode joined by dashes: the `impl` of the laws."""
        return "-".join(part for part in (self.framework, self.algorithm, self.mode) if part)


TABLE: tuple[tuple[str, str, str, str], ...] = (
    # pattern in "source | notes | kernel" (regular expression), framework, algorithm, mode
    # expert dispatch and combine: `lib` is the kernel; names are those of hwmodels.collectives.expert_implementations
    (r"/trtllm/.*NVLinkOneSided", "trtllm", "nvlink-one-sided", ""),
    (r"/trtllm/.*NVLinkTwoSided", "trtllm", "nvlink-two-sided", ""),
    (r"/trtllm/.*(?:deepep_ht|DeepEP normal)", "trtllm", "deepep-normal", ""),
    (r"/trtllm/.*(?:deepep_ll|DeepEP low-latency)", "trtllm", "deepep-low-latency", ""),
    (r"/vllm/.*deepep_v2_context", "vllm", "deepep-v2-normal", ""),
    (r"/vllm/.*deepep_v2_generation", "vllm", "deepep-v2-low-latency", ""),
    (r"/vllm/.*(?:deepep_ht|DeepEP normal)", "vllm", "deepep-normal", ""),
    (r"/vllm/.*(?:deepep_ll|DeepEP low-latency)", "vllm", "deepep-low-latency", ""),
    (r"/sglang/.*(?:deepep_normal|deepep_ht|DeepEP normal)", "sglang", "deepep-normal", ""),
    (r"/sglang/.*(?:deepep_ll|DeepEP low-latency)", "sglang", "deepep-low-latency", ""),
    (r"UCCL-EP", "uccl", "normal", ""),
    (r"torch all_to_all", "torch", "dense", ""),
    (r"pplx IBGDA", "pplx", "low-latency", ""),
    (r"DeepEP \(as measured by pplx\)", "deepep", "low-latency-rdma", ""),
    (r"DeepEP V2", "deepep", "v2-normal", ""),
    (r"DeepEP.*low-latency", "deepep", "low-latency", ""),
    (r"DeepEP.*normal", "deepep", "normal", ""),
    (r"microsoft/vidur", "vidur", "", ""),
    (r"/trtllm/", "trtllm", "", ""),
    (r"/sglang/", "sglang", "", ""),
    (r"/vllm/", "vllm", "", ""),
    (r"MAMF", "mamf", "", ""),
    (r"DeepGEMM", "deepgemm", "", ""),
)
"""``mamf`` is the best of a search over shapes; ``vllm`` GEMMs ran in short bursts (data/README, trap 6)."""

_COMPILED = tuple((re.compile(pattern), framework, algorithm, mode) for pattern, framework, algorithm, mode in TABLE)
_VERSION = re.compile(r"/(?:trtllm|sglang|vllm|nccl)/(\d[\w.+-]*)")


def implementation(source: str, notes: str = "", kernel: str = "") -> Implementation:
    """Implementation that a row's words name; one with an empty framework where they name none."""
    words = f"{source} | {notes} | {kernel}"
    version = _VERSION.search(source)
    found = version.group(1) if version else ""
    for pattern, framework, algorithm, mode in _COMPILED:
        if pattern.search(words):
            return Implementation(framework, found, algorithm, mode)
    return Implementation("", found)
