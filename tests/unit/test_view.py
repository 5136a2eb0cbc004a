"""The view of a build: plain lines where nobody watches, a table where somebody does."""

from __future__ import annotations

import io
import time

import pytest

from kiln.view import Stage, View, clock

pytestmark = pytest.mark.unit


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def plain() -> View:
    return View(("fetch", "base"), out=io.StringIO())


def said(view: View) -> list[str]:
    assert isinstance(view.out, io.StringIO)
    return view.out.getvalue().splitlines()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (59.9, "0:59"), (60, "1:00"), (3599, "59:59"), (3600, "1:00:00"), (90061, "25:01:01")],
)
def test_a_clock_shows_hours_from_an_hour_on(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def test_without_a_terminal_each_start_and_end_is_one_line(plain: View) -> None:
    with plain as view:
        view.start("fetch", "three files")
        view.finish("fetch")
        view.start("base")
        view.finish("base", "failed", "log: /x/base.log")
    assert [line.split(maxsplit=2)[:2] for line in said(view)] == [
        ["▸", "fetch"], ["✓", "fetch"], ["▸", "base"], ["✗", "base"],
    ]  # fmt: skip
    assert "three files" in said(view)[1]
    assert said(view)[-1].endswith("log: /x/base.log")
    assert "\x1b" not in "".join(said(view))


def test_updates_are_told_every_quarter_minute_and_not_more_often(plain: View, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    plain.start("fetch")
    for second in range(1, 32):
        now[0] = 1000.0 + second
        plain.update("fetch", f"{second} files", second, 40)
    assert len(said(plain)) == 2
    assert said(plain)[1].endswith("0:16 ETA 0:24 16 files")


def test_what_is_left_is_told_at_the_pace_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    assert Stage("a", "running", started=40.0, done=15, total=20).eta_s() == 20
    assert Stage("a", "running", started=40.0, total=20).eta_s() is None
    assert Stage("a", "running", started=40.0, done=3).eta_s() is None
    assert Stage("a", "done", seconds=7.0, done=15, total=20).eta_s() is None


def test_a_long_line_with_brackets_stays_one_line_as_it_is(plain: View) -> None:
    detail = "[3/9] RUN [bold]x[/bold] :smile: " + "y" * 300
    plain.start("base", detail)
    assert len(said(plain)) == 1
    assert said(plain)[0].endswith(detail)


def test_a_quiet_view_says_nothing_and_still_counts() -> None:
    with View(("fetch",), out=io.StringIO(), quiet=True) as view:
        view.start("fetch")
        view.finish("fetch", "cached")
    assert said(view) == []
    assert view.stages["fetch"].state == "cached"


def test_on_a_terminal_every_stage_is_shown_even_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    view = View(("fetch", "base"), out=Terminal())

    def build() -> None:
        with view:
            view.start("fetch", "[1/2] files")
            view.finish("fetch")
            view.start("base")
            view.finish("base", "failed")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        build()
    text = "\n".join(said(view))
    assert all(part in text for part in ("✓", "fetch", "✗", "base", "[1/2] files"))
    assert text.count("\x1b[?25h") == 1, "the cursor is shown again"
