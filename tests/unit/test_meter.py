"""What a stage cost, from /proc: of this machine, and of recorded files."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from kiln import meter
from kiln.meter import Meter

pytestmark = pytest.mark.unit


def test_busy_time_is_all_but_idle_waiting_and_stolen_time(tmp_path: Path) -> None:
    file = tmp_path / "stat"
    file.write_text("cpu  100 20 300 99999 88888 4 60 77777 50 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
    assert meter.busy_s(file) == 4.84


def test_memory_in_use_is_what_is_not_available(tmp_path: Path) -> None:
    file = tmp_path / "meminfo"
    file.write_text("MemTotal:       1000 kB\nMemFree:          10 kB\nMemAvailable:    400 kB\nBuffers: 5 kB\n")
    assert meter.used_bytes(file) == 600 * 1024


def test_a_busy_stretch_costs_wall_and_cpu_time() -> None:
    with Meter() as measured:
        end = time.process_time() + 0.3
        while time.process_time() < end:
            pass
    cost = measured.cost
    assert 0.3 <= cost.wall_s < 30
    assert cost.cpu_s >= 0.2
    assert cost.peak_bytes > 2**20


def test_an_error_is_measured_too_and_goes_through() -> None:
    measured = Meter()
    with pytest.raises(RuntimeError), measured:
        raise RuntimeError
    assert measured.cost.wall_s > 0


def test_a_peak_between_start_and_end_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([7, 900, 8])
    monkeypatch.setattr(meter, "_PERIOD_S", 0.01)
    monkeypatch.setattr(meter, "used_bytes", lambda: next(readings, 5))
    with Meter() as measured:
        time.sleep(0.2)
    assert measured.cost.peak_bytes == 900
