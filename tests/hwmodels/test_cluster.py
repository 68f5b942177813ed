"""Cluster files: presets, every kind of fault with its line, the round trip of a calibrated cluster."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from hwmodels import catalog, pools, yamlfile
from hwmodels import cluster as clusters
from hwmodels.device import Coefficient
from hwmodels.errors import InputError

GOOD = """\
name: mine
pools:
- {device: h100-sxm-80gb, gpus_per_node: 8, nodes: 4}
fabric:
  intra_node: nvlink4
  inter_node: {link: infiniband-ndr, ports_per_node: 8}
price: {usd_per_gpu_hour: 2.5, source: "an offer of 2026-05"}
context: 1GiB
context_source: assumed
"""


def faults_of(text: str) -> list[str]:
    with pytest.raises(InputError) as error:
        clusters.parse(text, "mine.yaml")
    return [str(fault) for fault in error.value.faults]


def test_good_file() -> None:
    cluster = clusters.parse(GOOD, "mine.yaml")
    assert (cluster.n_ranks, cluster.gpus_per_node, cluster.nodes) == (32, 8, 4)
    assert cluster.device.name == "h100-sxm-80gb"
    assert cluster.context_bytes == 2**30
    assert cluster.usd_per_gpu_hour is not None and cluster.usd_per_gpu_hour.value == 2.5
    assert cluster.mtbf_gpu_hours is None


@pytest.mark.parametrize("name", catalog.cluster_names())
def test_presets_load_and_round_trip(name: str) -> None:
    alone = clusters.load(name)
    assert clusters.parse(clusters.to_yaml(alone), "again.yaml") == alone and alone.name == name
    if len(alone.pools) > 1:  # a number of nodes would not say of which pool
        with pytest.raises(InputError, match="which grows is not said"):
            clusters.load(f"{name}:3")
        return
    cluster = clusters.load(f"{name}:3")
    assert (alone.nodes, cluster.nodes, cluster.name) == (1, 3, name)
    assert clusters.parse(clusters.to_yaml(cluster), "again.yaml") == cluster


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("nodes: 4", 'nodes: "4"', 3, "'4'"),
        ("nodes: 4", "nodes: 0", 3, "value 0"),
        ("nodes: 4", "nodes: -2", 3, "value -2"),
        ("nodes: 4", "nodes: 2.5", 3, "2.5"),
        ("nodes: 4", "nodes: true", 3, "True"),
        ("nodes: 4", "nodes: 4, color: red", 3, "unknown key 'color'"),
        ("gpus_per_node: 8, ", "", 3, "'gpus_per_node' is missing"),
        ("device: h100-sxm-80gb", "device: h100-smx-80gb", 3, "h100-sxm-80gb"),
        ("intra_node: nvlink4", "intra_node: nvlink44", 5, "nvlink4"),
        ("ports_per_node: 8", "ports_per_node: 8, oversubscription: 0.5", 6, "0.5"),
        ("2.5", '"2.5"', 7, "numbers stand without quotes"),
        ("2.5", "-1", 7, "value -1"),
        ("2.5", ".nan", 7, "price.usd_per_gpu_hour"),
        ("1GiB", "1024", 8, "no unit"),
        ("1GiB", "1Gib", 8, "unknown unit"),
        ("1GiB", "-1GiB", 8, "finite number >= 0"),
        ("context: 1GiB", "context: 1GiB\ncontext: 2GiB", 9, "given twice"),
        ("  inter_node: {link: infiniband-ndr, ports_per_node: 8}\n", "", 4, "no path between nodes"),
    ],
)
def test_one_fault_with_its_line(old: str, new: str, line: int, words: str) -> None:
    assert old in GOOD
    faults = faults_of(GOOD.replace(old, new, 1))
    assert any(f"mine.yaml:{line}" in fault and words in fault for fault in faults), faults


def test_all_faults_at_once() -> None:
    text = GOOD.replace("nodes: 4", 'nodes: "4"').replace("1GiB", "1024").replace("2.5", "-1") + "colour: red\n"
    faults = faults_of(text)
    assert len(faults) == 4
    assert sorted(int(f.split(":")[1]) for f in faults) == [3, 7, 8, 10]


def test_broken_and_empty_yaml() -> None:
    assert (
        "mine.yaml:3:" in faults_of(GOOD.replace("nodes: 4}", "nodes: 4"))[0]
        or "not valid YAML" in faults_of(GOOD.replace("nodes: 4}", "nodes: 4"))[0]
    )
    assert "is empty" in faults_of("")[0]
    assert "mine.yaml:1" in faults_of("- a\n- b\n")[0]


def test_inline_devices_and_links() -> None:
    text = GOOD.replace(
        "intra_node: nvlink4",
        "intra_node: {name: own, kind: nvlink, bandwidth: 200GB/s, latency: 1us, source: me, "
        "laws_of: nvlink4}",
    )
    cluster = clusters.parse(text, "mine.yaml")
    assert cluster.fabric.intra.bandwidth == 200e9
    known, own = catalog.link("nvlink4").coefficients, cluster.fabric.intra.coefficients
    # The numbers of nvlink4, ten points less sure: this link was not measured.
    assert {name: c.value for name, c in own.items()} == {name: c.value for name, c in known.items()}
    assert all(own[name].residual == pytest.approx(c.residual + 0.10) for name, c in known.items() if c.rows)
    zero = text.replace("200GB/s", "0GB/s")
    assert any("mine.yaml:5" in fault and "zero" in fault for fault in faults_of(zero))


def test_unlike_pools() -> None:
    text = GOOD.replace("fabric:", "- {device: b200-sxm-180gb, gpus_per_node: 8, nodes: 2}\nfabric:")
    assert clusters.parse(text, "mine.yaml").nodes == 6
    assert any("unlike gpus_per_node" in f for f in faults_of(text.replace("8, nodes: 2", "4, nodes: 2")))


@pytest.mark.parametrize("name", ["dgx-h100:0", "dgx-h100:-1", "dgx-h100:", "dgx-h100:two", "dgx-h1000", ""])
def test_bad_presets(name: str) -> None:
    with pytest.raises(InputError, match="Try:"):
        clusters.load(name)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        clusters.load(tmp_path / "none.yaml")
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="UTF-8"):
        clusters.load(binary)


def test_calibrated_cluster_round_trips(tmp_path: Path) -> None:
    coefficients = {
        "gemm.fp32.cpu_efficiency": Coefficient(1 / 3, "here", 40, 0.071),
        "attention.forward.efficiency": Coefficient(0.4, "here", 8, 0.1),
    }
    tables = {"all_reduce": {2: [(1e6, 2e-3), (1e3, 1e-4)]}, "send_recv": {2: [(1e3, 5e-5)]}}
    cluster = clusters.with_calibration(
        clusters.load("cpu-local"),
        device_coefficients=coefficients,
        collective_tables=tables,
        overlap=Coefficient(0.25, "here", 3, 0.1),
        launch_s=7e-6,
        source="this machine, today",
        residual=0.08,
    )
    assert cluster.name == "cpu-local-calibrated"
    assert cluster.device.coefficients["gemm.fp32.cpu_efficiency"] == coefficients["gemm.fp32.cpu_efficiency"]
    assert cluster.device.launch_s == 7e-6 and cluster.overlap.value == 0.25
    assert cluster.fabric.tables["all_reduce"][2] == ((1e3, 1e-4), (1e6, 2e-3))  # sizes ascending
    path = tmp_path / "calibrated.yaml"
    path.write_text(clusters.to_yaml(cluster))
    assert clusters.load(path) == cluster
    assert clusters.load(str(path)) == cluster


def test_calibration_raises_the_wire_speed_that_was_reached() -> None:
    # 100 MB all-reduced over 2 ranks in 10 ms: each sends 2 * 1/2 * 1e8 B: 1e10 B/s, above the assumed 2 GB/s.
    cluster = clusters.with_calibration(
        clusters.load("cpu-local"),
        device_coefficients={},
        collective_tables={"all_reduce": {2: [(1e8, 1e-2)]}},
        source="x",
    )
    assert cluster.fabric.intra.bandwidth == pytest.approx(1e10)


def test_bad_calibration() -> None:
    with pytest.raises(InputError) as error:
        clusters.with_calibration(
            clusters.load("cpu-local"),
            device_coefficients={},
            collective_tables={"gossip": {2: [(1.0, 1.0)]}, "all_reduce": {2: [(1.0, -1.0)], 1: [(1.0, 1.0)]}},
            source="x",
        )
    assert len(error.value.faults) == 3


def test_loading_a_preset_is_fast() -> None:
    clusters.load("dgx-h100:2")
    best = 1.0
    for _ in range(3):
        catalog.device.cache_clear()
        catalog.link.cache_clear()
        start = time.process_time()
        clusters.load("dgx-a100:16")
        best = min(best, time.process_time() - start)
    assert best < 0.03, f"{best * 1e3:.0f} ms"


def test_scientific_numbers_are_numbers() -> None:
    data, marks = yamlfile.parse("a: 1e-6\nb: 2.5E3\nc: 1e6\n", "x.yaml")
    assert data == {"a": 1e-6, "b": 2500.0, "c": 1e6}
    assert marks["c",] == 3


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: &a [*a]\n", 1),
        ("b: 1\na: &a {b: 1, <<: *a}\n", 2),
        ("x:\n  y: &y\n    z: [1, {w: *y}]\n", 2),
        ("&r\nx: *r\n", 1),
    ],
)
def test_an_alias_that_holds_itself(text: str, line: int) -> None:
    """The line is that of the anchor."""
    with pytest.raises(InputError, match="an anchor is named inside of itself") as error:
        yamlfile.parse(text, "x.yaml")
    assert str(error.value).startswith(f"x.yaml:{line}: ")


def test_aliases_side_by_side_are_values() -> None:
    assert yamlfile.parse("a: &a [1]\nb: *a\nc: [*a, *a]\n", "x.yaml")[0] == {"a": [1], "b": [1], "c": [[1], [1]]}
    # Each line doubles the one before: 2^41 ones in 41 lines.
    lines = ["a0: &a0 [1, 1]", *(f"a{i + 1}: &a{i + 1} [*a{i}, *a{i}]" for i in range(40))]
    with pytest.raises(InputError, match=r"x\.yaml:\d+: aliases multiply"):
        yamlfile.parse("\n".join(lines), "x.yaml")
    with pytest.raises(InputError, match=r"x\.yaml"):
        yamlfile.parse("a: " + "[" * 100_000 + "]" * 100_000, "x.yaml")


INLINE = """name: mine
pools: [{device: %s, gpus_per_node: 8, nodes: 4}]
fabric:
  intra_node: %s
context: 1GiB
context_source: my notes of 2026
"""


@pytest.mark.parametrize(
    ("device", "link", "faults"),
    [
        # A mapping is read as the mapping, a word as a name, anything else is neither: each fault once, no more.
        ("h100-sxm-80gb", "{name: x, kind: pcie, bandwidth: 1GB/s, latency: 1us, sourc: mine}",
         ["x.yaml:4: fabric.intra_node: key 'source' is missing", "x.yaml:4: fabric.intra_node.sourc: unknown key"]),
        ("h100-sxm-80gb", "{name: x, kind: pcie, bandwidth: 1, latency: 1us, source: my own notes}",
         ["x.yaml:4: fabric.intra_node.bandwidth: bandwidth 1 has no unit"]),
        ("[1]", "nvlink4", ["x.yaml:2: pools[0].device: value [1] (it is neither a name nor a mapping)"]),
        ("h100-sxm-80gb", "5", ["x.yaml:4: fabric.intra_node: value 5 (it is neither a name nor a mapping)"]),
        ("h100-sxm-80gb", "", ["x.yaml:4: fabric.intra_node: value None (it is neither a name nor a mapping)"]),
        ("''", "nvlink4", ["x.yaml:2: pools[0].device: value ''"]),
    ],
)  # fmt: skip
def test_a_name_or_a_mapping(device: str, link: str, faults: list[str]) -> None:
    with pytest.raises(InputError) as error:
        clusters.parse(INLINE % (device, link), "x.yaml")
    found = [str(fault) for fault in error.value.faults]
    assert len(found) == len(faults), found
    for fault, start in zip(sorted(found), sorted(faults), strict=True):
        assert fault.startswith(start), (fault, start)
        assert "constrained" not in fault and "LinkFile" not in fault


def test_pools_and_fabrics_take_other_numbers_of_nodes_together() -> None:
    plain = pools.with_nodes(clusters.load("dgx-h100:4"), [6])
    assert (plain.nodes, plain.fabric.nodes, plain) == (6, 6, clusters.load("dgx-h100:6"))
    torus = pools.with_nodes(clusters.load("tpu-v5e:16"), [64])
    assert (torus.n_ranks, torus.fabric.torus) == (64 * torus.gpus_per_node, (8, 8))
    regions = pools.with_nodes(clusters.load("two-regions-h100"), [3, 1])
    assert [(pool.nodes, pool.fabric and pool.fabric.nodes) for pool in regions.pools] == [(3, 3), (1, 1)]
