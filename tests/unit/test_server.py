"""A smoke run's server as far as it is pure: its words, its model, its start-up phases, its facts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kiln import logrules, presets, server
from kiln.errors import UserError
from kiln.facts.reading import BadReport
from kiln.settings import ROOT

pytestmark = pytest.mark.unit

PRESETS = presets.load_all(ROOT)
LOGS = ROOT / "tests/data/logs"
START: dict[str, Any] = {
    "state": "READY", "seconds": 61.0, "timed_out": False,
    "timeline": [{"time_s": 61.0, "state": "READY", "why": "health 200 in 1.0 s, 8 tokens in 0.2 s"}],
    "alive": ["detokenizer:12", "scheduler:10"], "missing": [], "orphans": [],
    "expected": {"scheduler": 1, "detokenizer": 1}, "compiled": [],
    "nccl": [{"process": "scheduler", "libraries": ["/x/libnccl.so.2"]}], "stacks": [],
}  # fmt: skip


def report(probe: str, facts: dict[str, Any]) -> str:
    return json.dumps({"probe": probe, "version": 1, "seconds": 1.0, "faults": [], "facts": facts})


@pytest.mark.parametrize(("gpus", "size"), [(1, "1"), (2, "2"), (3, "2"), (7, "4"), (8, "8"), (16, "8")])
def test_made_up_weights_are_spread_over_the_node(gpus: int, size: str) -> None:
    words = server.words(PRESETS["tiny"], port=31000, gpus=gpus)
    assert words[words.index("--tp-size") + 1] == size
    assert words.count("--tp-size") == 1
    assert words[-4:] == ["--host", "127.0.0.1", "--port", "31000"]


def test_real_weights_take_the_preset_as_it_is() -> None:
    preset = PRESETS["glm5-nvfp4"]
    assert server.words(preset, port=30000, gpus=8)[:-4] == preset.words()
    with pytest.raises(UserError, match="preset glm5-nvfp4 takes 8 GPUs, the node has 4"):
        server.words(preset, port=30000, gpus=4)


def test_the_tiny_model_is_a_config_and_a_tokenizer() -> None:
    files = server.model(ROOT, PRESETS["tiny"])
    assert sorted(files) == ["config.json", "tokenizer.json", "tokenizer_config.json"]
    config = json.loads(files["config.json"])
    assert config["num_attention_heads"] % 8 == config["num_key_value_heads"] % 8 == 0
    assert config["head_dim"] in (64, 128, 256)  # kernel set `core` has no other
    with pytest.raises(UserError, match=r"preset glm5-nvfp4 needs the weights of GLM-5-NVFP4\n  hint: .*--weights DIR"):
        server.model(ROOT, PRESETS["glm5-nvfp4"])


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("sglang-0.5.23-boot-then-kill",
         {"launch": 107.0, "distributed": 8.0, "warm_up": 2.0, "sglang.load_weight": 0.07,
          "sglang.kv_cache_allocation": 0.73, "sglang.scheduler_e2e": 8.42, "sglang.cuda_graph.decode": 0.0,
          "sglang.tokenizer_e2e": 115.44}),
        ("sglang-0.5.9-tp1-stop-cont-kill-term", {"launch": 65.0, "distributed": 4.0, "warm_up": 22.0}),
        ("sglang-0.5.9-tp2-boot-then-kill-rank1", {"launch": 111.0, "distributed": 5.0, "warm_up": 26.0}),
    ],
)  # fmt: skip
def test_start_up_phases_are_read_from_the_log_of_both_releases(log: str, expected: dict[str, float]) -> None:
    found = server.startup((LOGS / f"{log}.log").read_text(encoding="utf-8"))
    assert expected.items() <= found.items()


def test_tuning_and_graphs_are_phases_of_their_own() -> None:
    lines = (
        (0, "server_args=ServerArgs(x)"), (10, "Load weight begin. avail mem=90 GB"), (46, "Load weight end."),
        (50, "Running FlashInfer autotune..."), (90, "Capture cuda graph begin. This can take"),
        (298, "INFO:     Started server process [1]"), (299, "INFO:     Uvicorn running on x"),
        (303, "The server is fired up and ready to roll!"),
    )  # fmt: skip
    text = "\n".join(f"[2026-02-19 10:{at // 60:02}:{at % 60:02} TP0] {line}" for at, line in lines)
    assert server.startup(text) == {
        "launch": 10.0, "load_weight": 36.0, "kv_cache": 4.0, "autotune": 40.0, "cuda_graph": 208.0, "http": 1.0,
        "warm_up": 4.0,
    }  # fmt: skip


@pytest.mark.parametrize("text", ["", "no date here", "[2026-02-19 10:00:00] nothing known", "\x00\xff"])
def test_a_log_without_phases_has_none(text: str) -> None:
    assert server.startup(text) == {}


def test_the_facts_put_probes_and_log_together() -> None:
    log = (LOGS / "sglang-0.5.23-boot-then-kill.log").read_text(encoding="utf-8")
    found = server.facts(PRESETS["tiny"], report("serve", START), None, log, logrules.load(ROOT), exit_code=137)
    assert (found.preset, found.weights, found.start.state, found.load) == ("tiny", False, "READY", None)
    assert [one.rule for one in found.blames("death")] == ["child-died"]
    assert found.log_tail[-1] == "rc=137"
    assert found.startup_s["launch"] == 107.0


def test_a_probe_s_answer_that_kiln_does_not_know_is_refused() -> None:
    with pytest.raises(BadReport, match="probe serve: mood: Extra inputs"):
        server.facts(PRESETS["tiny"], report("serve", {**START, "mood": "good"}), None, "", ())
