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
    # collectives: custom all-reduce kernels of the engines, then the tools that timed NCCL and RCCL
    (r"custom all-reduce \(SGLang\w*_graph", "sglang", "custom", "graph"),
    (r"custom all-reduce \(TRTLLM", "trtllm", "custom", ""),
    (r"custom all-reduce \(vLLM\w*_graph", "vllm", "custom", "graph"),
    (r"custom all-reduce \(vLLM", "vllm", "custom", ""),
    (r"kineto nccl kernel", "torch", "nccl", "kernel"),
    (r"RCCL", "rccl", "", ""),
    (r"algo Ring forced|NCCL_ALGO=Ring", "nccl", "ring", ""),
    (r"algo Tree forced|NCCL_ALGO=Tree", "nccl", "tree", ""),
    (r"algo NVLS\w* forced|NCCL_ALGO=NVLS", "nccl", "nvls", ""),
    (r"default settings: P2P limited|default env: half of one NIC", "nccl", "", "default"),
    (r"older stack", "nccl", "", "older"),
    (r"/comm/nccl/|nccl-tests|NCCL|nccl/README|micro-benchmarks/nccl|clusters/nebius", "nccl", "", ""),
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
    # where the source says nothing, `lib` alone; runs of sglang call theirs plain "DeepEP normal" and "low-latency"
    (r"\| NVLinkOneSided$", "trtllm", "nvlink-one-sided", ""),
    (r"\| NVLinkTwoSided$", "trtllm", "nvlink-two-sided", ""),
    (r"\| trtllm_deepep_ht$", "trtllm", "deepep-normal", ""),
    (r"\| trtllm_deepep_ll$", "trtllm", "deepep-low-latency", ""),
    (r"\| (?:vllm_)?deepep_v2_context$", "vllm", "deepep-v2-normal", ""),
    (r"\| (?:vllm_)?deepep_v2_generation$", "vllm", "deepep-v2-low-latency", ""),
    (r"\| (?:vllm_)?deepep_ht$", "vllm", "deepep-normal", ""),
    (r"\| (?:vllm_)?deepep_ll$", "vllm", "deepep-low-latency", ""),
    (r"\| (?:DeepEP normal|sglang_deepep_normal|deepep_normal)$", "sglang", "deepep-normal", ""),
    (r"\| (?:DeepEP low-latency|sglang_deepep_ll)$", "sglang", "deepep-low-latency", ""),
    (r"UCCL-EP", "uccl", "normal", ""),
    (r"torch all_to_all", "torch", "dense", ""),
    (r"pplx IBGDA", "pplx", "low-latency", ""),
    (r"DeepEP \(as measured by pplx\)", "deepep", "low-latency-rdma", ""),
    (r"DeepEP V2", "deepep", "v2-normal", ""),
    (r"DeepEP.*low-latency", "deepep", "low-latency", ""),
    (r"DeepEP.*normal", "deepep", "normal", ""),
    # attention: the last cell is the kernel, by itself where it can be; the path of a source tells the rest. Prefill
    # and decode kernels of one library share a line
    (r"\| torch_flow_flashinfer$", "trtllm", "flashinfer", ""),
    (r"/attention/trtllm/|\|  \| torch_flow$", "trtllm", "fmha", ""),
    (r"\| flash_attention$", "sglang", "fa2", ""),
    (r"\| fa3$", "sglang", "fa3", ""),
    (r"\| fa4$", "sglang", "fa4", ""),
    (r"\| trtllm_mha$", "sglang", "trtllm", ""),
    (r"/attention/sglang/.*\| triton|\| triton$", "sglang", "triton", ""),
    (r"/attention/sglang/.*\| flashinfer|\| flashinfer$", "sglang", "flashinfer", ""),
    (r"\| vllm_flashinfer_trtllm(?:decode|prefill)$", "vllm", "trtllm", ""),
    (r"\| vllm_flashinfer[^|]*$", "vllm", "flashinfer", ""),
    (r"\| vllm_triton[^|]*$", "vllm", "triton", ""),
    (r"\| vllm_flash_attn_fa2$", "vllm", "fa2", ""),
    (r"\| vllm_flash_attn_fa3$", "vllm", "fa3", ""),
    (r"\| vllm_flash_attn_fa4$", "vllm", "fa4", ""),
    # vLLM's kernels for Intel GPUs were replaced between 0.20 and 0.26 (an fp8 cache is read 1.2-3 times as fast)
    (r"/attention/vllm/0\.(?:1[5-9]|20)\.", "vllm", "fa", "0.20"),
    (r"/attention/vllm/|\| vllm_flash_attn$", "vllm", "fa", ""),
    (r"(?i)\| (?:fa|flash[-_ ]?att(?:entio)?n)[-_ ]?v?2$", "flashattn", "fa2", ""),
    (r"(?i)\| (?:fa|flash[-_ ]?att(?:entio)?n)[-_ ]?v?3$", "flashattn", "fa3", ""),
    (r"(?i)\| cudnn$", "cudnn", "sdpa", ""),
    # GEMM: vLLM's block-scaled fp8 products were timed eagerly (floor 55 us; data/README, trap 6)
    (r"Fp8BlockScaledMMKernel", "vllm", "", "eager"),
    (r"microsoft/vidur", "vidur", "", ""),
    (r"/trtllm/", "trtllm", "", ""),
    (r"/sglang/", "sglang", "", ""),
    (r"/vllm/", "vllm", "", ""),
    (r"MAMF|best of shape search", "mamf", "", ""),
    (r"DeepGEMM", "deepgemm", "", ""),
    # the words of `notes` by themselves, for a source that names no framework
    (r"\| (?:torch_flow\s*[;|]|trt_flow_|deepgemm\s*[;|])", "trtllm", "", ""),
    (r"\| sglang(?:_[a-z]|\s*[;|])", "sglang", "", ""),
    (r"\| (?:vllm_default|(?:Cutlass|FlashInfer)\w*LinearKernel|torch\.nn\.functional\.linear)", "vllm", "", ""),
    (r"\b(?:attn_(?:pre|post)|mlp_(?:up|down))_proj tp\d", "vidur", "", ""),
    (r"(?i)\b(?:tensorrt|trt)-?llm\b", "trtllm", "", ""),
    (r"(?i)\bsglang\b", "sglang", "", ""),
    (r"(?i)\bvllm\b", "vllm", "", ""),
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
