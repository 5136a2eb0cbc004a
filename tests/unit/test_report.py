"""A fleet as a page, on a terminal and as data: whole with anything that receipts may hold, and never above 2 MB."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kiln import baseline
from kiln.errors import UserError
from kiln.receipt import Receipt
from kiln.report import bars, curves, fleet, html, terminal
from kiln.settings import ROOT, Settings, from_env
from kiln.verdict import Verdict
from tests import madereceipts as made

pytestmark = pytest.mark.unit
# Elements that must be closed; HTML lets p, td, dt and the like close themselves.
CLOSED = {
    *("a", "b", "details", "dl", "div", "defs", "figcaption", "figure", "g", "h1", "h2", "h3", "html", "i", "pre"),
    *("section", "style", "summary", "svg", "table", "text", "title"),
}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return replace(from_env({}), root=tmp_path)


def page(settings: Settings, *receipts: Receipt) -> str:
    return html.page(ROOT, fleet.gather(settings, receipts))


class Tags(HTMLParser):
    """Reads a page: tags that were closed in the wrong order, ids, links, text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids += [found["id"] or ""] if "id" in found else []
        self.links += [value or "" for key, value in attrs if key in ("href", "src")]
        if tag in CLOSED:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in CLOSED and (not self.open or self.open.pop() != tag):
            self.wrong.append(tag)

    def handle_data(self, data: str) -> None:
        self.words += "" if self.open[-1:] == ["style"] else data


ALL = [made.receipt, made.failing, made.not_run, made.empty]


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_a_page_is_whole_and_needs_nothing_but_itself(settings: Settings, kind: Any) -> None:
    text = page(settings, kind())
    found = Tags(text)
    assert (found.wrong, found.open) == ([], [])
    assert len(found.ids) == len(set(found.ids))
    assert {link for link in found.links if not link.startswith("#")} == set()
    assert {link[1:] for link in found.links} <= set(found.ids)
    assert not [word for word in ("<script", "<link", "<img", "http:", "https:", "@import", "url(") if word in text]
    assert "default-src 'none'" in text


def test_the_page_tells_verdicts_causes_cures_and_numbers(settings: Settings) -> None:
    words = " ".join(Tags(page(settings, made.receipt(), made.failing())).words.split())
    for part in (
        "Smoke: ✗ FAIL", "2 nodes, 1 × PASS, 1 × FAIL.", "✗ FAIL fabric/peers, GPU 2 -> 5",
        "cause the IOMMU translates peer traffic", "cure boot with iommu=pt", "3,740 tok/s · floor 2,600 (144 %)",
        "2,980 W, 1.26 tok/s per W", "from 58 s: scheduler TP5 ended with -9", "sw_power_cap 100 %", "GPU 5 125–125 W",
        "power limit 600 W", "CUDA graphs", "gen throughput (token/s): 3740.12", made.DIGEST,
    ):  # fmt: skip
        assert part in words


def test_text_of_a_receipt_is_never_markup(settings: Settings) -> None:
    bad = "<script>alert(1)</script>"
    outcome = {"check": "a/b", "verdict": "FAIL", "message": bad, "cause": bad, "cure": bad, "subject": bad}
    text = page(settings, made.receipt(outcomes=[outcome], preset=bad, server={"log_excerpts": [bad]}))
    assert bad not in text
    assert "&lt;script&gt;" in text


def test_an_empty_receipt_is_told_as_not_run_and_not_as_good(settings: Settings) -> None:
    words = Tags(page(settings, made.empty())).words
    assert "NOT_RUN, and no finding says why" in words
    assert "PASS" not in words.replace("NOT_RUN is never PASS", "")


def test_checks_that_were_not_run_for_one_reason_come_as_one(settings: Settings) -> None:
    skipped = [{"check": f"fabric/c{number}", "verdict": "NOT_RUN", "message": "not reached"} for number in range(9)]
    node = fleet.gather(settings, [made.receipt(outcomes=skipped, verdict="NOT_RUN")]).nodes[0]
    (one,) = node.troubles()
    assert one.check == "fabric/c0, fabric/c1, fabric/c2, fabric/c3, fabric/c4, fabric/c5 and 3 more"


def test_a_slower_node_is_held_against_its_baseline_unless_the_run_did_so(settings: Settings) -> None:
    baseline.record(settings, made.receipt())
    slow = [*made.outcomes(0.8)]
    (node,) = fleet.gather(settings, [made.receipt(outcomes=slow)]).nodes
    assert [one.verdict for one in node.troubles()] == [Verdict.FAIL] * 9
    told = {"check": "baseline/fabric-x", "verdict": "FAIL", "message": "m"}
    (node,) = fleet.gather(settings, [made.receipt(outcomes=[*slow, told])]).nodes
    assert len(node.troubles()) == 1


def test_of_each_node_the_newest_receipt_is_shown_the_worst_node_first(settings: Settings) -> None:
    older = made.failing(id="01d1", node=made.node(), started="2026-08-01T00:00:00Z")
    found = fleet.gather(settings, [made.receipt(), older, made.not_run(), made.failing()])
    assert [node.receipt.id for node in found.nodes] == ["f00dfeed0001", "beef00000002", "a1b2c3d4e5f6"]
    assert [one.id for one in found.history] == ["f00dfeed0001", "beef00000002", "a1b2c3d4e5f6", "01d1"]
    assert found.verdict is Verdict.FAIL


def test_no_receipts_are_no_report(settings: Settings) -> None:
    with pytest.raises(UserError, match="there are no receipts\n  hint: inv smoke makes one"):
        fleet.gather(settings, [])


def test_hours_of_samples_stay_below_two_megabytes_and_keep_their_peaks(settings: Settings) -> None:
    samples = [*made.samples(2000)]
    samples[8 * 1321]["power_w"] = 644.0
    text = page(settings, made.receipt(samples=samples))
    assert len(text.encode()) < 300_000
    (chart, *_) = curves.charts(made.receipt(samples=samples), 240)
    assert chart.y.high == 700.0
    lowest = min(float(pair.split()[1]) for pair in re.findall(r"[\d.]+ [\d.]+", chart.panels[0].path))
    assert lowest == pytest.approx(chart.y.at(644.0), abs=0.1)


@pytest.mark.slow
def test_forty_nodes_with_samples_fit_into_two_megabytes(settings: Settings) -> None:
    one = made.receipt(outcomes=[*made.outcomes()] * 10)
    names = [one.node.model_copy(update={"name_hash": f"{number:012x}"}) for number in range(40)]
    nodes = [one.model_copy(update={"id": node.name_hash, "node": node}) for node in names]
    text = page(settings, *nodes)
    assert 500_000 < len(text.encode()) <= html.LIMIT_BYTES
    assert text.count("<section id=") == 40


def test_more_nodes_than_fit_are_refused_with_the_next_command(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(html, "LIMIT_BYTES", 1000)
    with pytest.raises(UserError, match="name fewer: inv report --receipts"):
        page(settings, made.empty())


@pytest.mark.parametrize("most", [2, 7, 48, 240])
def test_a_thinned_line_is_about_as_long_as_asked_in_order_and_keeps_both_extremes(most: int) -> None:
    line = [(float(time), float((time * 7919) % 1000)) for time in range(5000)]
    runs = curves.thin(line, most)
    kept = [point for run in runs for point in run]
    assert len(kept) <= 2 * most
    assert all(before[0] < after[0] for before, after in pairwise(kept))
    assert {0.0, 999.0} <= {value for _, value in kept}


def test_a_short_line_is_kept_as_it_is() -> None:
    line = [(0.0, 1.0), (1.0, 5.0), (2.0, 3.0)]
    assert curves.thin(line, 240) == [line]
    assert curves.thin(line[:1], 240) == [line[:1]]


def test_a_hole_in_the_samples_breaks_the_line() -> None:
    line = [(float(time), 1.0) for time in [*range(20), *range(60, 80)]]
    assert [(run[0][0], run[-1][0]) for run in curves.thin(line, 240)] == [(0.0, 19.0), (60.0, 79.0)]


def test_a_line_that_is_all_holes_stays_short() -> None:
    line = [(time * 1.0 + (1000 if time % 2 else 0) * time, 1.0) for time in range(4000)]
    assert sum(map(len, curves.thin(sorted(line), 48))) <= 4 * 48


def test_what_nvml_did_not_tell_is_not_drawn(settings: Settings) -> None:
    samples = [{"time_s": time, "gpu": gpu, "power_w": None if gpu else 100.0} for time in range(5) for gpu in (0, 1)]
    (chart,) = curves.charts(made.receipt(samples=samples), 240)
    assert (chart.metric.field, [panel.gpu for panel in chart.panels]) == ("power_w", [0])
    card = fleet.gather(settings, [made.receipt(samples=samples)]).nodes[0].cards()[1]
    assert (card.power_mean_w, card.temperature_max_c, card.throttled) == (None, None, "")


def test_a_matrix_is_shaded_by_the_share_of_the_best_and_says_what_is_not_known() -> None:
    rows = bars.matrix(made.failing())
    assert (rows[0][1].words, rows[0][1].shade) == ("55.8", bars.SHADES - 1)
    assert (rows[2][5].words, rows[2][5].shade) == ("3.1", 0)
    assert (rows[5][2].words, rows[0][0].words) == ("?", "–")
    assert bars.matrix(made.receipt(peer_gb_s=[[None]]))[0][0].words == "–"


@pytest.mark.parametrize("receipt", [made.receipt(), made.failing()], ids=["good", "bad"])
def test_bars_stay_within_their_track(receipt: Receipt) -> None:
    assert receipt.server
    found = [*bars.phases(receipt), *bars.startup(receipt.server), *bars.states(receipt.server), *bars.rates([receipt])]
    assert all(bar.start >= 0 and bar.start + bar.width <= 100.001 for bar in found)


def test_bars_of_a_run_without_length_do_not_divide_by_zero() -> None:
    zero = {"timeline": [{"time_s": 0, "state": "STARTING"}], "startup_s": {"x": 0.0, "y": None}, "throughput_tok_s": 0}
    receipt = made.receipt(server=zero, phases=[{"name": "after", "start_s": 0, "seconds": 0, "verdict": "PASS"}])
    assert receipt.server
    assert bars.states(receipt.server)[0].width == pytest.approx(100)
    assert bars.rates([receipt])[0].words == "0 tok/s · no floor in this topology"
    assert [bar.label for bar in bars.startup(receipt.server)] == ["x"]
    assert bars.phases(receipt)[0].words == "0 s"


def test_the_terminal_gets_plain_text_with_causes_and_cures(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal.show(fleet.gather(settings, [made.receipt(), made.failing(preset="[bold]x")]))
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert "FAIL    fabric/peers  GPU 2 -> 5: the copy arrived with 4096 wrong bytes" in said
    assert "cure  boot with iommu=pt, switch ACS redirect off on the bridges, then inv smoke again" in said
    assert "[bold]x" in said
    assert said.rstrip().endswith("verdict  FAIL")


def test_one_receipt_is_shown_with_every_outcome(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    terminal.show_receipt(made.failing(), fleet.compared(settings, made.failing()))
    said = capsys.readouterr().out
    assert said.count("fabric/bandwidth") == 8
    assert "node     77ab00cd12ef, topology rtx-pro-6000-8x-direct" in said
    assert "DEAD                    from 58 s: scheduler TP5 ended with -9" in said


def test_the_report_is_plain_data_without_samples(settings: Settings) -> None:
    data = json.loads(json.dumps(fleet.gather(settings, [made.receipt(), made.failing()]).as_dict()))
    assert data["verdict"] == "FAIL"
    assert "samples" not in data["nodes"][0]["receipt"]
    assert data["nodes"][0]["gpus"][5]["power_max_w"] == 125.0
    assert [one["throughput_tok_s"] for one in data["history"]] == [None, 3740.0]
