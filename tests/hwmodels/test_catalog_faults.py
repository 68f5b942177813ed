"""Good files made bad: every slip of a catalog entry or measured file is named with its file and key (row, column)."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from hwmodels import catalog, measured, units, yamlfile
from hwmodels import cluster as clusters
from hwmodels.catalog import checks
from hwmodels.errors import InputError
from hwmodels.schema import DeviceFile, LinkFile

SHEETS = {
    # name -> (bf16 or fp16 dense FLOP/s, bytes/s): NVIDIA, AMD and Google data sheets, dense, decimal.
    "v100-sxm-32gb": (125e12, 900e9), "a100-sxm-80gb": (312e12, 2039e9), "h100-sxm-80gb": (989.4e12, 3350e9),
    "h200-sxm-141gb": (989.4e12, 4800e9), "b200-sxm-180gb": (2250e12, 8000e9), "l40s-48gb": (362e12, 864e9),
    "mi300x-192gb": (1307.4e12, 5300e9), "mi355x-288gb": (2516.6e12, 8000e9), "tpu-v5e": (197e12, 819e9),
}  # fmt: skip


def faults(folder: str, name: str, change: Callable[[dict[str, object]], object]) -> list[str]:
    """Faults of a catalog entry after `change` has edited its content."""
    data = yaml.safe_load(catalog.text(folder, name))
    change(data)
    text = yamlfile.dump(data)
    return [str(f) for f in checks.entry_faults(folder, text, f"catalog/{folder}/{name}.yaml")]


def scaled(text: str, factor: float) -> str:
    """A quantity with its number multiplied."""
    match = re.fullmatch(r"([\d.eE+]+)(.*)", text)
    if match is None:
        raise ValueError(text)
    return f"{float(match.group(1)) * factor:.10g}{match.group(2)}"


def named(found: list[str], file: str, key: str, words: str) -> bool:
    return any(f.startswith(file) and key in f and words in f for f in found)


@pytest.mark.parametrize("name", catalog.device_names())
def test_devices_of_the_catalog(name: str) -> None:
    assert faults("devices", name, lambda d: None) == []


@pytest.mark.parametrize("name", catalog.network_names())
def test_links_of_the_catalog(name: str) -> None:
    assert faults("networks", name, lambda d: None) == []


@pytest.mark.parametrize("name", catalog.cluster_names())
def test_clusters_of_the_catalog(name: str) -> None:
    data, marks = yamlfile.parse(catalog.text("clusters", name), name)
    assert checks.inline_faults(data, name, marks) == []


@pytest.mark.parametrize("name", SHEETS)
def test_numbers_that_the_checks_start_from(name: str) -> None:
    data = yaml.safe_load(catalog.text("devices", name))
    peak = data["peak_flops"].get("bf16", data["peak_flops"].get("fp16"))
    assert (units.parse_flops(peak), units.parse_bandwidth(data["memory_bandwidth"])) == SHEETS[name]


STANDARD_LINKS = [n for n in catalog.network_names() if "generation" in yaml.safe_load(catalog.text("networks", n))]


@pytest.mark.parametrize("name", STANDARD_LINKS)
@pytest.mark.parametrize(
    ("factor", "words"), [(2.0, "both directions"), (2.0**30 / 1e9, "mixes up"), (1e9 / 2.0**30, "mixes up"),
                          (8.0, "bits for bytes"), (0.125, "bytes for bits"), (1.5, "not that of its standard")],
)  # fmt: skip
def test_bandwidth_of_a_link(name: str, factor: float, words: str) -> None:
    found = faults("networks", name, lambda d: d.update(bandwidth=scaled(d["bandwidth"], factor)))
    assert named(found, f"catalog/networks/{name}.yaml:", "bandwidth", words), found


@pytest.mark.parametrize("folder", ["devices", "networks"])
def test_a_source_that_says_nothing(folder: str) -> None:
    names = catalog.device_names() if folder == "devices" else catalog.network_names()
    for name in names:
        for text in ("", "todo", "unknown", "web"):

            def change(d: dict[str, object], text: str = text) -> None:
                if folder == "devices":
                    d["sources"] = {"datasheet": text, "launch": "assumed: as others"}
                else:
                    d["source"] = text

            assert named(faults(folder, name, change), f"catalog/{folder}/{name}.yaml", "source", ""), (name, text)

        def gone(d: dict[str, object]) -> None:
            d.pop("sources" if folder == "devices" else "source")

        assert named(faults(folder, name, gone), f"catalog/{folder}/{name}.yaml", "source", "missing")


PEAKS = [
    (name, dtype)
    for name in catalog.device_names()
    for dtype in yaml.safe_load(catalog.text("devices", name))["peak_flops"]
    if name != "cpu-core" and dtype != "fp32"
]
BLIND = {("gaudi2", "bf16"), ("gaudi3", "fp8")}
"""Peaks with one partner only, whose generation knows both ratios: Gaudi 2 runs fp8 at twice bf16, Gaudi 3 at once."""


@pytest.mark.parametrize(("name", "dtype"), PEAKS)
def test_a_sparse_peak(name: str, dtype: str) -> None:
    def change(d: dict[str, dict[str, str]]) -> None:
        d["peak_flops"][dtype] = scaled(d["peak_flops"][dtype], 2.0)

    found = faults("devices", name, change)
    if (name, dtype) in BLIND:
        assert found == []
        return
    assert named(found, f"catalog/devices/{name}.yaml:", "peak_flops", "sparse"), found


WHOLE_SHEET = [
    n for n in catalog.device_names()
    if yaml.safe_load(catalog.text("devices", n))["vendor"] in ("NVIDIA", "AMD")
    and n not in ("a10g-24gb", "h20-sxm-96gb")
]  # fmt: skip


@pytest.mark.parametrize("name", WHOLE_SHEET)
def test_a_sheet_of_sparse_peaks(name: str) -> None:
    """All tensor peaks doubled: the ratios stay, clock or power gives it away (A10G and H20 run far below them)."""

    def change(d: dict[str, dict[str, str]]) -> None:
        d["peak_flops"] = {t: p if t == "fp32" else scaled(p, 2.0) for t, p in d["peak_flops"].items()}

    found = faults("devices", name, change)
    assert named(found, f"catalog/devices/{name}.yaml:", "peak_flops", "sparse"), found


def test_sixteen_bit_accumulation() -> None:
    # The headline figure of an RTX 4090 accumulates in 16 bits: twice what training gets (data/README, trap 1).
    found = faults("devices", "rtx-4090-24gb", lambda d: d["peak_flops"].update(fp16="330.3TFLOP/s"))
    assert named(found, "catalog/devices/rtx-4090-24gb.yaml:", "peak_flops.fp16", "sparse")


@pytest.mark.parametrize("name", catalog.device_names())
def test_units_of_a_device(name: str) -> None:
    file = f"catalog/devices/{name}.yaml:"
    binary = faults("devices", name, lambda d: d.update(memory_bandwidth="3350GiB/s"))
    assert named(binary, file, "memory_bandwidth", "mixes up GiB/s and GB/s")

    def decimal(d: dict[str, object]) -> None:
        d["memory"] = "80GB"
        d["sources"] = {k: v for k, v in d["sources"].items() if k != "memory"}  # type: ignore[attr-defined]

    assert named(faults("devices", name, decimal), file, "memory", "mixes up GB and GiB")
    # 80 GB turned into GiB by arithmetic: nobody builds that.
    assert named(faults("devices", name, lambda d: d.update(memory="74.5GiB")), file, "memory", "no whole number")


def test_units_and_standard_of_a_link() -> None:
    file = "catalog/networks/nvlink4.yaml:"
    assert named(faults("networks", "nvlink4", lambda d: d.update(bandwidth="450GiB/s")), file, "bandwidth", "GiB/s")
    assert named(faults("networks", "nvlink4", lambda d: d.pop("generation")), file, "kind", "generation is missing")
    unknown = faults("networks", "nvlink4", lambda d: d.update(generation="nvlink9"))
    assert named(unknown, file, "bandwidth", "'nvlink9' is unknown")
    # 400 GB/s is what both directions of the cut H800 link add up to; eight lanes have 200.
    cut = faults("networks", "nvlink4-h800", lambda d: d.update(bandwidth="400GB/s"))
    assert named(cut, "catalog/networks/nvlink4-h800.yaml:", "bandwidth", "both directions")
    # PCIe may leave out its encoding and headers, not more.
    assert checks.bandwidth_fault("pcie4", 31e9, "x") is None and checks.bandwidth_fault("pcie4", 32e9, "x") is None
    assert checks.bandwidth_fault("pcie4", 25e9, "x") is not None
    assert checks.bandwidth_fault("pcie5x8", 31.5e9, "x") is None
    assert checks.standard("nvlink4x0") is None


@pytest.mark.parametrize(
    ("folder", "name", "key", "value", "words"),
    [
        ("networks", "nvlink4", "bandwidth", "0GB/s", "zero"),
        ("networks", "nvlink4", "bandwidth", "450", "no unit"),
        ("networks", "nvlink4", "latency", "-1us", "finite number >= 0"),
        ("networks", "nvlink4", "lanes", 18, "unknown key"),
        ("networks", "nvlink3-bridge", "beyond", "0GB/s", "zero"),
        ("devices", "h100-sxm-80gb", "memory_bandwidth", "nanGB/s", "memory_bandwidth"),
    ],
)
def test_the_schema_speaks_first(folder: str, name: str, key: str, value: object, words: str) -> None:
    found = faults(folder, name, lambda d: d.update({key: value}))
    assert named(found, f"catalog/{folder}/{name}.yaml", key, words), found


CLUSTER = """
name: mine
pools: [{device: h100-sxm-80gb, gpus_per_node: 8, nodes: 4}]
fabric:
  intra_node: {name: fast, kind: nvlink, %s, latency: 1us, source: my notes of 2026}
  inter_node: {link: infiniband-ndr, ports_per_node: 8}
context: 1GiB
context_source: my notes of 2026
"""


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("generation: nvlink4, bandwidth: 900GB/s", "counts both directions"),
        ("generation: nvlink4, bandwidth: 450GiB/s", "mixes up"),
        ("bandwidth: 450GiB/s", "mixes up"),
        ("generation: nvlink9, bandwidth: 450GB/s", "unknown"),
    ],
)
def test_a_users_link_is_held_to_its_own_words(line: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as error:
        clusters.parse(CLUSTER % line, "mine.yaml")
    assert str(error.value).startswith("mine.yaml:5: fabric.intra_node.bandwidth")


def test_a_users_link_without_a_standard_is_taken_as_it_is() -> None:
    # 900 GB/s of NVLink may be the next generation: `check` asks, loading does not.
    assert clusters.parse(CLUSTER % "bandwidth: 900GB/s", "mine.yaml").fabric.intra.bandwidth == 900e9
    calibrated = clusters.to_yaml(clusters.load("dgx-h100:2"))
    assert clusters.parse(calibrated, "calibrated.yaml").fabric.intra.bandwidth == 450e9


def test_every_datasheet_row_agrees(shared_data: Path) -> None:
    """Bandwidths of the catalog beside `hw_devices.csv`: a slip of units or directions would show as its ratio."""
    with (shared_data / "hw_devices.csv").open(newline="") as stream:
        sheet = {float(r["mem_bw_GBps"]) * 1e9 for r in csv.DictReader(stream) if r["mem_bw_GBps"]}
    for name in catalog.device_names():
        device = catalog.device(name)
        # The A40 is of its own data sheet, the H100 of 500 W of torchtitan's words: neither is in that file.
        if device.kind == "gpu" and name not in ("a40-48gb", "h100-sxm-96gb-500w"):
            assert any(checks.close(device.memory_bandwidth, true) == "" for true in sheet), name
    assert checks.close(3350e9 * 2.0**30 / 1e9, 3350e9) == "mixes up GiB/s and GB/s"
    assert checks.close(2 * 450e9, 450e9) == "counts both directions"
    assert checks.close(1.3 * 450e9, 450e9) == "differs" and checks.close(float("nan"), 1.0) == "is no number"


def test_every_network_row_is_in_the_catalog(shared_data: Path) -> None:
    """Per-direction bandwidths of `hw_networks.csv`: links of a GPU or port, and what a GPU has of its node's ports."""
    with (shared_data / "hw_networks.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    known = {catalog.link(n).bandwidth for n in catalog.network_names()}
    for row in rows:
        if row["kind"].startswith(("scale-up", "host", "scale-out")):
            assert float(row["per_gpu_uni_GBps"]) * 1e9 in known, row["name"]
            # Trap 1: the file's own columns are one direction and both.
            assert float(row["per_gpu_bidir_GBps"]) == pytest.approx(2 * float(row["per_gpu_uni_GBps"]))
        elif row["kind"].startswith("node") and row["port_Gbps"]:
            assert float(row["port_Gbps"]) / 8 * 1e9 in known, row["name"]


PORTS = {
    # preset -> GB/s per direction of network for each GPU: the node rows of hw_networks.csv.
    "dgx-a100": 25.0, "dgx-h100": 50.0, "hgx-h200": 50.0, "hgx-b200": 50.0, "dgx-b300": 100.0, "gb200-nvl72": 50.0,
    "aws-p4d": 6.25, "aws-p4de": 6.25, "aws-p5": 50.0, "aws-p5en": 50.0, "aws-p6-b200": 50.0, "aws-p6-b300": 100.0,
    "gcp-a3-high": 12.5, "gcp-a3-mega": 25.0, "mi300x": 50.0, "mi355x": 50.0,
}  # fmt: skip


@pytest.mark.parametrize("name", PORTS)
def test_network_of_each_gpu_in_the_presets(name: str) -> None:
    assert clusters.load(f"{name}:2").fabric.inter_bandwidth_per_gpu == pytest.approx(PORTS[name] * 1e9)


FORMATS = {
    # format -> (reader, header, a good row, columns that must be above zero)
    "gemm": (
        measured.gemm, "gpu,dtype,m,n,k,time_us,tflops,notes,source",
        "a100_sxm,bfloat16,2048,5120,6144,509.49,252.9,,lab book 2026", ("m", "n", "k", "time_us"),
    ),
    "attention": (
        measured.attention,
        "gpu,phase,direction,kernel,dtype,kv_dtype,causal,batch,q_len,kv_len,n_heads,n_kv_heads,head_dim,time_us,source",
        "a100_sxm,prefill,fwd,flash_attention,bfloat16,bfloat16,1,2,128,128,8,8,128,18.69,lab book 2026",
        ("batch", "q_len", "kv_len", "n_heads", "n_kv_heads", "head_dim", "time_us"),
    ),
    "collectives": (
        measured.collectives, "system,n_gpus,n_nodes,op,bytes,time_us,algbw_GBps,busbw_GBps,notes,source",
        "8xA100-SXM4-80GB NVSwitch,2,1,all_gather,512,8.98,0.057,0.029,NCCL 2.27.3,lab book 2026",
        ("n_gpus", "n_nodes", "bytes", "time_us"),
    ),
    "expert": (
        measured.expert,
        "gpu,lib,ep_size,n_nodes,tokens_per_rank,hidden,topk,experts,phase,dtype,comm_sms,time_us,bw_GBps,source",
        "b200_sxm,DeepEP low-latency,8,1,16,2048,8,128,dispatch,fp8,,16.48,1.03,lab book 2026",
        ("tokens_per_rank", "hidden", "topk", "experts", "time_us"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", FORMATS)
def test_measured_files(kind: str, tmp_path: Path) -> None:
    reader, header, row, positive = FORMATS[kind]
    columns = header.split(",")
    path = tmp_path / f"{kind}.csv"
    path.write_text(f"{header}\n{row}\n")
    assert len(reader(path)) == 1
    for column in positive:
        cells = row.split(",")
        for bad in ("-1", "nan", "inf", "-0.5", "many", "0"):
            cells[columns.index(column)] = bad
            path.write_text(f"{header}\n{row}\n{','.join(cells)}\n")
            with pytest.raises(InputError) as error:
                reader(path)
            # The second row of data is line 3.
            assert re.search(rf"{kind}\.csv:3: column {column}", str(error.value)), (column, bad, str(error.value))
        keep = [i for i, name in enumerate(columns) if name != column]
        lines = [",".join(line.split(",")[i] for i in keep) for line in (header, row)]
        path.write_text("\n".join(lines) + "\n")
        with pytest.raises(InputError, match=rf"columns? {column}") as error:
            reader(path)
        assert f"{kind}.csv:1" in str(error.value)


@pytest.mark.parametrize("kind", FORMATS)
def test_every_fault_of_a_measured_file_at_once(kind: str, tmp_path: Path) -> None:
    reader, header, row, positive = FORMATS[kind]
    columns = header.split(",")
    cells = row.split(",")
    for column in positive[-2:]:
        cells[columns.index(column)] = "-1"
    path = tmp_path / f"{kind}.csv"
    path.write_text(f"{header}\n{','.join(cells)}\n{row}\n{','.join(cells)}\n")
    with pytest.raises(InputError) as error:
        reader(path)
    assert len(error.value.faults) == 4
    for where in (2, 4):
        assert all(f"{kind}.csv:{where}: column {column}" in str(error.value) for column in positive[-2:])


def test_the_schemas_are_the_ones_that_load() -> None:
    """What the checks read is what the catalog reads: both come from the same models."""
    assert set(LinkFile.declared_fields()) >= {"generation", "bandwidth", "source", "beyond"}
    assert set(DeviceFile.declared_fields()) >= {"peak_flops", "memory", "memory_bandwidth", "sources"}


QUANTITIES = ("memory", "memory_bandwidth", "l2", "tdp", "launch")
SLIPS = [
    (name, key, factor)
    for name in catalog.device_names()
    for key in QUANTITIES
    if key in yaml.safe_load(catalog.text("devices", name))
    # A prefix that is off, of powers of 2 for capacities; and for bandwidths also the slips of directions and bits.
    for factor in ((1024.0, 1 / 1024.0) if key in ("memory", "l2") else (1000.0, 0.001))
    + ((2.0, 0.5, 8.0, 0.125) if key == "memory_bandwidth" else ())
]
UNSEEN = {("cpu-core", "memory", 1024.0), ("cpu-core", "l2", 1024.0), ("cpu-core", "memory_bandwidth", 0.5),
          ("rtx-5090-32gb", "memory_bandwidth", 0.5)}  # fmt: skip
"""A host may have 8 TiB of memory and 4 GiB of cache over all its cores, and a core draw 6 GB/s; half the bus of an
RTX 5090 is that of another card of its generation with as much memory (RTX PRO 4500: 256 bit x 28 Gb/s)."""


@pytest.mark.parametrize(("name", "key", "factor"), SLIPS)
def test_a_number_that_no_device_can_have(name: str, key: str, factor: float) -> None:
    found = faults("devices", name, lambda d: d.update({key: scaled(str(d[key]), factor)}))
    if (name, key, factor) in UNSEEN:
        assert found == []
        return
    # An L4 in kW is 72 kW; 300 GB/s doubled is 600, which no 192 bit of 12.5 Gb/s give.
    assert named(found, f"catalog/devices/{name}.yaml:", key, ""), found
    assert len([f for f in found if f": {key}: " in f]) == 1, found


@pytest.mark.parametrize(
    ("key", "text", "words"),
    [
        # An H100 has 5120 bit x 5.23 Gb/s = 3350 GB/s, 80 GiB, 50 MiB, 700 W.
        ("memory_bandwidth", "6700GB/s", "is doubled"),
        ("memory_bandwidth", "1675GB/s", "is halved"),
        ("memory_bandwidth", "3350MB/s", "below anything that is built"),
        ("memory_bandwidth", "3.35GB/s", "below anything that is built"),
        ("memory_bandwidth", "3350Gb/s", "takes bytes for bits"),
        ("memory_bandwidth", "2700GB/s", "is of no memory of hopper"),
        ("memory", "80MiB", "below anything that is built"),
        ("l2", "50GiB", "above anything that is built"),
        ("l2", "50KiB", "below anything that is built"),
        ("tdp", "700kW", "above anything that is built"),
        ("launch", "5s", "above anything that is built"),
        ("launch", "5ms", "above anything that is built"),
    ],
)
def test_slips_of_an_h100(key: str, text: str, words: str) -> None:
    found = faults("devices", "h100-sxm-80gb", lambda d: d.update({key: text}))
    assert len(found) == 1 and named(found, "catalog/devices/h100-sxm-80gb.yaml:", f": {key}: ", words), found


@pytest.mark.parametrize("factor", [1000.0, 0.001])
@pytest.mark.parametrize("name", [n for n in catalog.device_names() if n != "cpu-core"])
def test_peaks_off_by_a_prefix(name: str, factor: float) -> None:
    """All of them together, so that their ratios stay: every one is named."""

    def change(d: dict[str, dict[str, str]]) -> None:
        d["peak_flops"] = {t: scaled(p, factor) for t, p in d["peak_flops"].items()}

    found = faults("devices", name, change)
    for dtype in yaml.safe_load(catalog.text("devices", name))["peak_flops"]:
        assert named(found, f"catalog/devices/{name}.yaml:", f"peak_flops.{dtype}: ", "anything that is built"), found


def test_a_generation_without_a_known_memory_is_held_to_its_peaks() -> None:
    # 989.4 TFLOP/s with 3.35 TB/s are 3.4e-3 bytes per FLOP; ten times less is below what parts have (1.2e-3).
    def change(d: dict[str, object]) -> None:
        d.update(generation="next", memory_bandwidth="335GB/s")

    assert named(faults("devices", "h100-sxm-80gb", change), "catalog/", "memory_bandwidth", "bytes per 16-bit FLOP")
    assert faults("devices", "h100-sxm-80gb", lambda d: d.update(generation="next")) == []
