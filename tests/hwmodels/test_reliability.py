"""Failures, repair, spares and storage of cluster files."""

from __future__ import annotations

import math

import pytest

from hwmodels import catalog, yamlfile
from hwmodels import cluster as clusters
from hwmodels.cluster import parse
from hwmodels.device import Coefficient
from hwmodels.errors import InputError
from hwmodels.reliability import ASSUMED_STORAGE, Reliability, Storage, components, repair_of, storage_of
from hwmodels.writing import cluster_content

TEXT = """\
name: mine
pools: [{device: h100-sxm-80gb, gpus_per_node: 8, nodes: 64}]
fabric:
  intra_node: nvlink4
  inter_node: {link: infiniband-ndr, ports_per_node: 8, topology: rail-fat-tree, leaf_nodes: 32}
context: 1GiB
context_source: test
failures:
  gpu: {hours: 1000, source: counted}
  nic: {hours: 2000, source: counted}
  node: {hours: 3000, source: counted}
  link: {hours: 4000, source: counted}
  switch: {hours: 5000, source: counted}
  software: {hours: 6000, source: counted}
repair: {time: 12h, source: contract}
spares: 2
storage: {write_per_node: 1GB/s, read_per_node: 2GB/s, write_total: 8GB/s, latency: 5ms, source: measured}
"""


def test_components_are_counted() -> None:
    found = {c.kind: c for c in components(parse(TEXT, "mine.yaml"), 320)}
    # 320 GPUs on 40 nodes of 8 ports, under two leaves of each of 8 rails
    assert {kind: c.count for kind, c in found.items()} == {
        "gpu": 320, "nic": 320, "node": 40, "link": 320, "switch": 16, "software": 320,
    }  # fmt: skip
    assert found["gpu"].rate == pytest.approx(320 / 3.6e6)
    assert [kind for kind, c in found.items() if c.takes_node] == ["gpu", "nic", "node"]


def test_one_node_has_no_switch() -> None:
    assert "switch" not in {c.kind for c in components(parse(TEXT, "mine.yaml"), 8)}


def test_the_rest_of_the_file() -> None:
    found = parse(TEXT, "mine.yaml")
    assert (repair_of(found).value, found.reliability.spares) == (43200.0, 2)
    assert storage_of(found) == Storage(1e9, 2e9, 8e9, math.inf, 5e-3, "measured")


def test_written_and_read_again_it_is_the_same() -> None:
    found = parse(TEXT, "mine.yaml")
    again = parse(yamlfile.dump(cluster_content(found)), "again.yaml")
    assert (again.reliability, again.storage) == (found.reliability, found.storage)


def test_mtbf_alone_counts_every_cause_by_gpu() -> None:
    start, rest = TEXT.split("failures:\n")
    end = rest[rest.index("repair:") :]
    found = parse(start + "mtbf: {gpu_hours: 50000, source: counted}\n" + end, "mine.yaml")
    (only,) = components(found, 512)
    assert (only.kind, only.count, only.mtbf_s, only.takes_node) == ("any", 512, 1.8e8, True)


def test_what_is_not_stated_is_assumed_and_says_so() -> None:
    found = clusters.load("dgx-a100:2")
    (only,) = components(found, 16)
    assert only.source.startswith("assumed") and repair_of(found).source.startswith("assumed")
    assert storage_of(found) is ASSUMED_STORAGE and ASSUMED_STORAGE.source.startswith("assumed")


@pytest.mark.parametrize("name", catalog.cluster_names())
def test_causes_of_the_catalog_add_up_to_all_of_them(name: str) -> None:
    if not clusters.load(name).reliability.hours:
        return
    found = clusters.load(f"{name}:16")
    assert found.mtbf_gpu_hours is not None
    rate = sum(c.rate for c in components(found, found.n_ranks))
    assert found.n_ranks / rate / 3600.0 == pytest.approx(found.mtbf_gpu_hours.value, rel=0.01)
    assert all("Llama 3" in c.source for c in found.reliability.hours.values())


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("hours: 1000", "hours: 0", "failures.gpu.hours"),
        ("  gpu:", "  psu:", "psu"),
        ("time: 12h", "time: 12", "no unit"),
        ("spares: 2", "spares: -1", "spares"),
        ("write_per_node: 1GB/s", "write_per_node: 0GB/s", "zero"),
        ("source: contract", "sauce: contract", "repair.sauce"),
    ],
)
def test_faults_name_line_and_key(old: str, new: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as error:
        parse(TEXT.replace(old, new), "mine.yaml")
    assert "mine.yaml:" in str(error.value)


def test_objects_are_checked() -> None:
    with pytest.raises(InputError) as error:
        Reliability({"fan": Coefficient(1.0, ""), "gpu": Coefficient(0.0, "")}, Coefficient(-1.0, ""), -2)
    assert len(error.value.faults) == 4
    with pytest.raises(InputError, match="write_per_node"):
        Storage(0.0, 1.0)
