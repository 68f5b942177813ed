"""The page parses, loads nothing, escapes what users gave, and says what it was given."""

from __future__ import annotations

import importlib.util
import re
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest

from hwmodels.errors import RunError
from planner.results import TimelineEvent
from reports.gantt import gantt
from reports.html import render, write_report

_spec = importlib.util.spec_from_file_location("report_samples", Path(__file__).with_name("samples.py"))
samples = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(samples)

VOID = {"meta", "link", "input", "br", "img", "hr"}


class Page(HTMLParser):
    """Collects tags, attributes and text; fails on tags that do not nest."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.ids, self.words, self.links = [], [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in ("href", "src", "action", "data", "srcset", "xlink:href"):
                self.links.append(value)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"style", "script"} & set(self.open):
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())

    def count(self, tag, css=""):
        return sum(1 for t, a in self.tags if t == tag and css in (a.get("class") or "").split() + [""])


def full(**more):
    given = {
        "title": "tiny",
        "inputs": {"model": "tiny-llama", "seq_len": 128},
        "rows": samples.rows(6),
        "step": samples.step(
            4, samples.one_f_one_b(), explain=[{"what": "gemm", "value": 0.8, "source": "gemm_measured.csv"}]
        ),
        "comparisons": [samples.comparison("tp2"), samples.comparison("pp2", comparable=False)],
        "notes": ["a note of the caller"],
        "measured_timeline": samples.one_f_one_b(2, 4),
        "dropped": {"tp-heads": 3, "memory": 9},
        "trace": "t.json",
    }
    return render(**(given | more))


@pytest.fixture(scope="module")
def page():
    return Page(full())


def test_it_loads_nothing(page):
    text = full()
    assert set(page.links) - {"data:,"} <= {f"#{i}" for i in page.ids}
    assert not re.search(r"https?://|//[a-z]|@import|url\(", text.replace("ui.perfetto.dev", ""))
    assert not any(tag in ("iframe", "object", "embed", "img") for tag, _ in page.tags)


def test_every_section_is_there_and_linked(page):
    assert len(page.ids) == len(set(page.ids))
    for ident in ("plan", "ranked", "time", "pipeline", "measured-timeline", "memory", "measured", "notes"):
        assert ident in page.ids
        assert f"#{ident}" in page.links


def test_what_it_says(page):
    text = page.text
    assert "Chosen plan: tp1 pp1 dp8 mbs1" in text
    # rows are 10.00 and 10.13 s: 1.3 % longer
    assert "shortest predicted step, 10.0 s: tp2 pp2 dp9 mbs1 takes 1.3% longer" in text
    assert "31.0 s" in text and "28.0 s to 34.0 s" in text
    assert "+20.0%" in text and "-90.0%" in text and "not comparable" in text
    assert "predicted 3.00 GiB, measured 2.00 GiB (+50.0%)" in text
    assert "recompute is taken as none" in text and "a note of the caller" in text
    assert "gemm_measured.csv" in text and "tp-heads" in text
    assert "seq len" in text and "tokens/s/GPU" in text


def test_user_text_is_escaped():
    evil = "<script>alert(1)</script>\"'&<img src=x onerror=y>"
    event = TimelineEvent(0, evil, evil, evil, 0.0, 1.0)
    text = full(
        title=evil,
        inputs={evil: evil},
        rows=[{evil: evil, "step_s": 1.0}, {evil: "b", "step_s": 2.0}],
        notes=[evil],
        chosen=evil,
        why=[evil],
        dropped={evil: 1},
        trace=evil,
        comparisons=[samples.comparison(evil)],
        measured_timeline=[event],
        step=samples.step(2, [event], notes=[evil], explain=[{evil: evil}], verdict=evil),
    )
    page = Page(text)
    assert page.count("script") == 1 and page.count("img") == 0
    assert "<script>alert" not in text and "onerror=y>" not in text
    assert page.text.count(evil) > 8


def test_widths_and_errors_are_drawn_to_scale():
    page = Page(full(rows=()))
    widths = [float(m) for m in re.findall(r"width:([\d.]+)%", full(rows=()))]
    assert widths and all(0 <= w <= 100 for w in widths)
    # phases of rank 0: 8 of 31 s are forward
    assert any(a.get("style") == f"width:{100 * 8 / 31:.3f}%" for t, a in page.tags if t == "i")
    # -90 % fills the left half, +20 % starts in the middle
    styles = [a.get("style") for t, a in page.tags if t == "i"]
    assert "left:0.00%;width:50.00%" in styles and "left:50.00%;width:20.00%" in styles


def test_a_page_without_anything_but_a_title():
    page = Page(render(title="empty", inputs={}))
    assert "None were noted." in page.text
    assert "ranked" not in page.ids and "time" not in page.ids and "measured" not in page.ids


def test_keyboard_and_screen_reader(page):
    scrolls = [a for t, a in page.tags if t == "div" and "scroll" in (a.get("class") or "").split()]
    assert scrolls and all(a.get("tabindex") == "0" and a.get("role") == "region" for a in scrolls)
    assert page.count("button") == len(samples.rows(1)[0]) + 1  # a column each, and the place
    drawings = [a for t, a in page.tags if t == "svg"]
    assert drawings and all(a.get("aria-label") for a in drawings)
    assert any(t == "html" and a.get("lang") == "en" for t, a in page.tags)


def test_a_thousand_rows_and_64_stages(tmp_path):
    started = time.monotonic()
    events = samples.one_f_one_b(64, 128)
    path = write_report(
        tmp_path / "big.html", title="big", inputs={}, rows=samples.rows(1000), step=samples.step(64, events)
    )
    assert time.monotonic() - started < 60  # seconds on an idle machine: 2
    assert path.stat().st_size < 4_000_000
    page = Page(path.read_text())
    assert page.count("tr") > 1000
    # 64 lanes of compute, 64 of sends, drawn as paths
    assert page.count("svg") == 128 and page.count("rect") == 0


def test_idle_time_of_a_timeline():
    # rank 0 busy 2 of 4 s, rank 1 busy 3 of 4 s: 37.5 % idle on average
    events = [TimelineEvent(0, "compute", "0F0", "F", 0, 2), TimelineEvent(1, "compute", "1F0", "F", 1, 4)]
    found = gantt(events, "g", "G")
    assert "37.5% of the compute streams, 25.0% to 50.0% a rank" in found["summary"]
    assert found["lanes"][1]["boxes"][0]["x"] == "2500.0" and found["lanes"][1]["boxes"][0]["w"] == "7500.0"
    assert gantt([], "g", "G") is None


def test_written_whole_or_not_at_all(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunError, match="cannot be written"):
        write_report(tmp_path / "file" / "page.html", title="t", inputs={})
    write_report(tmp_path / "new" / "page.html", title="t", inputs={})
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["page.html"]
