"""The trace has the structure that ui.perfetto.dev reads."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from hwmodels.errors import InputError
from planner.results import TimelineEvent
from reports.perfetto import trace, write_trace

_spec = importlib.util.spec_from_file_location("report_samples", Path(__file__).with_name("samples.py"))
samples = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(samples)


@pytest.fixture(scope="module")
def content():
    return trace(samples.one_f_one_b(pp=4, microbatches=8), title="t")


def of(content, phase):
    return [e for e in content["traceEvents"] if e["ph"] == phase]


def test_every_event_is_a_complete_one_in_microseconds(content):
    spans = of(content, "X")
    # 4 ranks x 8 micro-batches x (F, B), and 3 boundaries x 8 x 2 sends
    assert len(spans) == 4 * 8 * 2 + 3 * 8 * 2
    assert all(isinstance(e[k], int) for e in spans for k in ("pid", "tid"))
    first = next(e for e in spans if e["name"] == "0F0")
    assert (first["ts"], first["dur"], first["pid"], first["cat"]) == (0.0, 1e6, 0, "F")
    assert first["args"]["microbatch"] == 0


def test_a_process_a_rank_and_a_thread_a_stream(content):
    meta = of(content, "M")
    assert {e["args"]["name"] for e in meta if e["name"] == "process_name"} == {f"rank {r}" for r in range(4)}
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in meta if e["name"] == "thread_name"}
    assert set(threads.values()) == {"compute", "pp"}
    for event in of(content, "X"):
        assert threads[event["pid"], event["tid"]] == ("pp" if "SEND" in event["name"] else "compute")


def test_events_of_a_thread_do_not_overlap(content):
    by_thread: dict[tuple[int, int], list] = {}
    for event in of(content, "X"):
        by_thread.setdefault((event["pid"], event["tid"]), []).append(event)
    for events in by_thread.values():
        events.sort(key=lambda e: e["ts"])
        for one, two in pairwise(events):
            assert one["ts"] + one["dur"] <= two["ts"] + 1e-6


def test_flows_are_paired_and_end_where_the_data_is_used(content):
    starts, ends = of(content, "s"), of(content, "f")
    assert len(starts) == len(ends) == 3 * 8 * 2
    by_id = {e["id"]: e for e in starts}
    assert len(by_id) == len(starts)
    assert Counter(e["id"] for e in ends) == dict.fromkeys(by_id, 1)
    spans = {(e["pid"], e["tid"], e["ts"]): e["name"] for e in of(content, "X")}
    arrows = set()
    for end in ends:
        start = by_id[end["id"]]
        assert end["ts"] >= start["ts"] and end["bp"] == "e"
        arrows.add((spans[start["pid"], start["tid"], start["ts"]], spans[end["pid"], end["tid"], end["ts"]]))
    assert ("0SEND_F3", "1F3") in arrows and ("2SEND_B5", "1B5") in arrows


def test_replicas_are_joined_rank_by_rank():
    events = [TimelineEvent(r, "pp", "0SEND_F0", "SEND_F", 1, 2) for r in (0, 1)]
    events += [TimelineEvent(r, "pp", "1RECV_F0", "RECV_F", 2, 3) for r in (2, 3)]
    found = trace(events)
    pairs = {(s["pid"], f["pid"]) for s, f in zip(of(found, "s"), of(found, "f"), strict=True)}
    assert pairs == {(0, 2), (1, 3)}


def test_overlapping_events_get_lanes_of_their_own():
    events = [
        TimelineEvent(0, "dp", name, "REDUCE_GRAD", a, b) for name, a, b in (("a", 0, 2), ("b", 1, 3), ("c", 2, 4))
    ]
    found = trace(events)
    threads = {e["tid"]: e["args"]["name"] for e in of(found, "M") if e["name"] == "thread_name"}
    assert {e["name"]: threads[e["tid"]] for e in of(found, "X")} == {"a": "dp", "b": "dp (2)", "c": "dp"}


def test_counters(content):
    # 1F1B: rank r of 4 holds at most 4 - r micro-batches at once
    peak = {}
    for event in of(content, "C"):
        peak[event["pid"]] = max(peak.get(event["pid"], 0), event["args"]["micro-batches"])
    assert peak == {0: 4, 1: 3, 2: 2, 3: 1}
    with_memory = trace([TimelineEvent(0, "compute", "x", "F", 0, 1)], memory={0: [(0.0, 5), (0.5, 7)]})
    assert [(e["ts"], e["args"]["bytes"]) for e in of(with_memory, "C")] == [(0.0, 5), (5e5, 7)]


def test_file_is_json_and_repeats_to_the_byte(tmp_path):
    events = [
        *samples.one_f_one_b(2, 2),
        TimelineEvent(0, "compute", 'quote " </script>', "OPTIMIZER", 90, 91, {"x": float("nan"), "y": Path("p")}),
    ]
    one = write_trace(tmp_path / "a.json", events).read_bytes()
    assert one == write_trace(tmp_path / "b.json", events).read_bytes()
    loaded = json.loads(one)
    assert loaded["displayTimeUnit"] == "ms"
    assert any(e["name"] == 'quote " </script>' and e["args"]["x"] == "nan" for e in loaded["traceEvents"])
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["a.json", "b.json"]  # nothing half-written is left


def test_no_events_and_bad_events(tmp_path):
    assert json.loads(write_trace(tmp_path / "e.json", []).read_text())["traceEvents"] == []
    with pytest.raises(InputError, match="ends after it starts"):
        trace([TimelineEvent(0, "compute", "x", "F", 2.0, 1.0)])
    with pytest.raises(InputError, match="timeline event 0"):
        trace([TimelineEvent(0, "compute", "x", "F", float("nan"), 1.0)])
