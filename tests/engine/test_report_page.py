"""The page in a real browser without a network: it asks for nothing, complains of nothing, fits, and can be read."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kiln import host, run
from kiln.errors import UserError
from kiln.report import fleet, html
from kiln.settings import ROOT, from_env
from tests import madereceipts as made
from tests.chromium import Page, chromium

pytestmark = [pytest.mark.engine, pytest.mark.slow]
WIDTHS, SCHEMES = (1400, 420), ("light", "dark")
# WCAG 2.2 AA asks for 4.5 between a text and what is behind it.
CONTRAST = """(() => {
  const rgb = text => { const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number); return {c: [r, g, b], a}; };
  const light = c => { const [r, g, b] = c.map(v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b; };
  const behind = node => { const {c, a} = rgb(getComputedStyle(node).backgroundColor);
    return a === 1 ? c : (under => under.map((v, i) => v * (1 - a) + c[i] * a))(behind(node.parentElement)); };
  const texts = [...document.querySelectorAll('body *')].filter(node =>
    node.checkVisibility() && !node.closest('svg') &&
    [...node.childNodes].some(child => child.nodeType === 3 && child.data.trim()));
  const low = texts.map(node => { const [a, b] = [rgb(getComputedStyle(node).color).c, behind(node)].map(light);
    return [(Math.max(a, b) + .05) / (Math.min(a, b) + .05), node.textContent.trim().slice(0, 40)]; })
    .filter(([ratio]) => ratio < 4.5);
  return {looked: texts.length, low};
})()"""
CURVES = """[...document.querySelectorAll('svg')].map(svg => { const box = svg.getBoundingClientRect();
  return [box.width, box.height, svg.querySelector('.curve').getBoundingClientRect().width / box.width]; })"""
TICKS = """[...document.querySelectorAll('.tick')].map(tick => [parseFloat(getComputedStyle(tick).fontSize)
  * tick.getScreenCTM().a, tick.textContent])"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("browser")
    if run.run(["unshare", "--map-root-user", "--net", "true"], check=False).returncode != 0:
        pytest.skip("NOT_RUN: this machine allows no network namespace")
    try:
        host.ensure(replace(from_env(), home=folder), ["chromium"], print)
    except UserError as error:
        pytest.skip(f"NOT_RUN: no Chromium: {error}")
    program = host.which("chromium")
    assert program
    with chromium(program, folder) as page:
        yield page


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the page of a fleet with every kind of receipt."""
    folder = tmp_path_factory.mktemp("report")
    kinds = [made.receipt(), made.failing(), made.not_run(), made.empty()]
    found = fleet.gather(replace(from_env({}), root=folder), kinds)
    (folder / "report.html").write_text(html.page(ROOT, found), encoding="utf-8")
    return folder / "report.html"


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_page_renders_without_a_request_or_a_complaint(
    browser: Page, file: Path, width: int, scheme: str, tmp_path: Path
) -> None:
    browser.asked.clear()
    browser.open(file, width, scheme)
    assert browser.asked == [file.as_uri()]
    assert browser.complaints == []
    assert browser.value("document.documentElement.scrollWidth") == width
    shot = browser.screenshot()
    (tmp_path / "page.png").write_bytes(shot)
    assert size(shot) == (width, browser.value("document.documentElement.scrollHeight"))
    assert browser.value("document.title") == "Smoke: FAIL, 4 nodes"
    corner = pixel(shot)
    assert all(channel > 250 for channel in corner) if scheme == "light" else all(channel < 40 for channel in corner)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_text_stands_out_from_what_is_behind_it(browser: Page, file: Path, width: int, scheme: str) -> None:
    browser.open(file, width, scheme)
    browser.value("document.querySelectorAll('details').forEach(one => one.open = true)")
    found = browser.value(CONTRAST)
    assert found["looked"] > 500
    assert found["low"] == []


@pytest.mark.parametrize("width", WIDTHS)
def test_curves_and_their_axes_are_large_enough_to_read(browser: Page, file: Path, width: int) -> None:
    browser.open(file, width, "light")
    panels = browser.value(CURVES)
    assert len(panels) == 2 * 3 * 8
    assert all(wide >= 150 and high >= 80 and share > 0.7 for wide, high, share in panels)
    ticks = browser.value(TICKS)
    assert {text for _, text in ticks} >= {"0", "300", "600", "0 s"}
    assert min(pixels for pixels, _ in ticks) >= 9


def test_the_page_prints_light_with_everything_open(browser: Page, file: Path) -> None:
    browser.open(file, 1400, "dark")
    browser.call("Emulation.setEmulatedMedia", media="print", features=[])
    assert browser.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.value("document.querySelector('details table').checkVisibility()") is True
    assert browser.printed().startswith(b"%PDF")
    browser.call("Emulation.setEmulatedMedia", media="")


def test_a_page_that_asks_for_something_would_be_noticed(browser: Page, file: Path) -> None:
    bad = file.with_name("bad.html")
    text = file.read_text(encoding="utf-8")
    bad.write_text(text.replace("<h1>", '<img src="far.png"><script>x</script><h1>', 1), encoding="utf-8")
    browser.open(bad, 1400, "light")
    refused = [one for one in browser.complaints if "Content Security Policy" in one]
    assert len(refused) == 2
    browser.complaints.clear()


def size(png: bytes) -> tuple[int, int]:
    """Return width and height of a PNG."""
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def pixel(png: bytes) -> tuple[int, ...]:
    """Return the first pixel of an RGB or RGBA PNG without interlacing."""
    data, place = b"", 8
    while place < len(png):
        length, kind = struct.unpack(">I4s", png[place : place + 8])
        data += png[place + 8 : place + 8 + length] if kind == b"IDAT" else b""
        place += length + 12
    return tuple(zlib.decompressobj().decompress(data, 4)[1:4])
