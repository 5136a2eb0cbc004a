"""Receipts as files: written whole and once, read back, named in words, described by a schema that is current."""

from __future__ import annotations

import json
import math
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from kiln import receipts
from kiln.errors import UserError
from kiln.receipt import Receipt
from kiln.settings import ROOT, Settings, from_env
from kiln.verdict import failed, not_run, passed
from tests import madereceipts as made

pytestmark = pytest.mark.unit


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return replace(from_env({}), root=tmp_path)


@pytest.mark.parametrize("kind", [made.receipt, made.failing, made.not_run, made.empty], ids=lambda kind: kind.__name__)
def test_a_receipt_is_read_back_as_it_was_saved_and_fits_the_schema(settings: Settings, kind: Any) -> None:
    receipt = kind(samples=[*made.samples(3)])
    file = receipts.save(settings, receipt)
    assert receipts.load(file) == receipt
    assert receipts.load_all(settings) == (receipt,)
    schema = json.loads((ROOT / receipts.SCHEMA_FILE).read_text())
    jsonschema.validate(json.loads(file.read_text()), schema)


def test_the_committed_schema_is_the_model_s() -> None:
    text = (ROOT / receipts.SCHEMA_FILE).read_text(encoding="utf-8")
    assert text == receipts.schema_text(), "run: inv receipts.schema"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("verdict", "FINE"),
        ("schema", "kiln/receipt/2"),
        ("node", {"name_hash": "node7", "topology": "any"}),
        ("new", 1),
    ],
)
def test_the_schema_refuses_what_the_model_refuses(key: str, value: object) -> None:
    data = {**made.data(samples=[]), key: value}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, receipts.schema())
    with pytest.raises(ValueError, match=key):
        Receipt.model_validate(data)


def test_the_file_says_image_time_and_node_in_its_name(settings: Settings) -> None:
    file = receipts.save(settings, made.receipt())
    assert file == settings.root / "receipts/smoke/5a5a5a5a5a5a/20260901T120000Z-3fa1c09be275.json"
    other = receipts.save(settings, made.empty())
    assert other.parent.name == "no-image"


def test_no_receipt_is_written_over_another_one(settings: Settings) -> None:
    files = [receipts.save(settings, made.receipt(seconds=seconds)) for seconds in (1.0, 2.0, 3.0)]
    assert [file.name for file in files] == [f"20260901T120000Z-3fa1c09be275{end}.json" for end in ("", "-2", "-3")]
    assert [receipts.load(file).seconds for file in files] == [1.0, 2.0, 3.0]


def test_many_nodes_save_at_once_and_nothing_half_written_is_left(settings: Settings) -> None:
    jobs = [threading.Thread(target=receipts.save, args=(settings, made.receipt(samples=[]))) for _ in range(12)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    assert len(receipts.load_all(settings)) == 12
    assert [path for path in settings.root.rglob(".*") if path.is_file()] == []


def test_a_number_that_is_none_is_null_in_the_file(settings: Settings) -> None:
    finding = failed("cosine is NaN", cause="c", cure="d", cosine=math.nan, worst=math.inf)
    file = receipts.save(settings, made.receipt(outcomes=[one.model_dump() for one in receipts.outcomes([finding])]))
    assert '"cosine": null, "worst": null' in file.read_text()
    assert receipts.load(file).outcomes[0].numbers == {"cosine": None, "worst": None}


def test_findings_become_outcomes_with_all_they_say() -> None:
    found = receipts.outcomes([passed("good", "GPU 1", h2d_gb_s=55.0), not_run("why", required=False)])
    assert [(one.message, one.subject, one.numbers, one.required) for one in found] == [
        ("good", "GPU 1", {"h2d_gb_s": 55.0}, True),
        ("why", "", {}, False),
    ]


def test_names_addresses_uuids_and_serials_are_scrubbed_and_the_registry_is_left_out(settings: Settings) -> None:
    outcome = {
        "check": "preflight/xid",
        "verdict": "FAIL",
        "message": "Xid 79 on gpu7",
        "cause": "10.1.2.3",
        "cure": "x",
    }
    server = {"log_excerpts": ["GPU-1b4e28ba-2fa1-11d2-883f-0016d3cca427 at gpu7.lan"],
              "timeline": [{"time_s": 0, "state": "DEAD", "why": "serial: 12345"}]}  # fmt: skip
    image = {"ref": f"10.1.2.3:5000/kiln/sglang@{made.DIGEST}", "digest": made.DIGEST, "labels": {"pin": "13.1.0.3"}}
    receipt = made.receipt(outcomes=[outcome], server=server, image=image, not_run=["fabric/ipc: gpu7 is gone"])
    text = receipts.save(settings, receipt, private=["GPU7.lan", "gpu7"]).read_text()
    assert not [word for word in ("gpu7", "10.1.2.3", "1b4e28ba", "12345") if word in text]
    found = receipts.load_all(settings)[0]
    assert found.outcomes[0].message == "Xid 79 on HOST"
    assert (found.outcomes[0].cause, found.not_run) == ("ADDRESS", ("fabric/ipc: HOST is gone",))
    assert found.image.ref == f"kiln/sglang@{made.DIGEST}"
    assert found.image.labels == {"pin": "13.1.0.3"}


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("2026-02-25T12:00:00Z", "2026-02-25T12:00:00Z"),
        ("2026-02-25T13:00:00.250000+01:00", "2026-02-25T12:00:00Z"),
    ],
)
def test_times_are_kept_in_utc(given: str, kept: str) -> None:
    assert made.receipt(started=given).started == kept


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"started": "2026-02-25T12:00:00"}, "started: .* has no time zone"),
        ({"seconds": -1}, "seconds: "),
        ({"image": {"digest": "sha256:12"}}, r"image\.digest: "),
        ({"node": {"name_hash": "../../x", "topology": "any"}}, r"node\.name_hash: "),
        ({"verdict": "GOOD"}, "verdict: "),
        ({"extra": 1}, "extra: "),
    ],
)
def test_a_file_that_is_no_receipt_is_refused_with_its_path_and_field(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    file = tmp_path / "x.json"
    file.write_text(json.dumps({**made.data(samples=[]), **change}))
    with pytest.raises(UserError, match=message) as caught:
        receipts.load(file)
    assert caught.value.problems[0].source == str(file)


def test_every_broken_file_is_named_at_once(settings: Settings) -> None:
    folder = receipts.save(settings, made.empty()).parent
    (folder / "a.json").write_text("{")
    (folder / "b.json").write_text("[]")
    with pytest.raises(UserError) as caught:
        receipts.load_all(settings)
    assert [Path(one.source).name for one in caught.value.problems] == ["a.json", "b.json"]


@pytest.fixture
def stored(settings: Settings) -> Settings:
    for receipt in (made.receipt(samples=[]), made.failing(samples=[]), made.empty()):
        receipts.save(settings, receipt)
    return settings


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        ([], ["000000000003", "a1b2c3d4e5f6", "f00dfeed0001"]),
        (["a1b2"], ["a1b2c3d4e5f6"]),
        (["f00d", "a1b2c3d4e5f6", "f00dfeed0001"], ["a1b2c3d4e5f6", "f00dfeed0001"]),
        ([made.DIGEST], ["a1b2c3d4e5f6", "f00dfeed0001"]),
        (["5a5a5a5a5a5a"], ["a1b2c3d4e5f6", "f00dfeed0001"]),
    ],
)
def test_receipts_are_named_by_id_or_digest_and_come_by_age(stored: Settings, words: list[str], ids: list[str]) -> None:
    assert [one.id for one in receipts.select(stored, words)] == ids


def test_receipts_are_named_by_file_and_folder(stored: Settings, tmp_path: Path) -> None:
    folder = stored.root / "receipts/smoke/no-image"
    (file,) = folder.glob("*.json")
    assert receipts.select(stored, [str(file)]) == receipts.select(stored, [str(folder)]) == (made.empty(),)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("zzz", "no receipt is named by 'zzz'"),
        ("", "no receipt is named by ''"),
        ("5a5a", "'5a5a' names 2 receipts\n  hint: name one of: a1b2c3d4e5f6, f00dfeed0001"),
    ],
)
def test_a_word_for_no_receipt_or_several_is_refused(stored: Settings, word: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        receipts.find(stored, word)
    assert message in str(caught.value)


def test_a_line_of_the_list_says_what_and_when() -> None:
    told = receipts.row(made.receipt())
    assert told[:4] == ("a1b2c3d4e5f6", "2026-09-01T12:00:00Z", made.NODE, "rtx-pro-6000-8x-direct")
    assert told[4:] == ("5a5a5a5a5a5a", "tiny", "PASS", "3,740")
    assert receipts.row(made.empty())[4:] == ("–", "–", "NOT_RUN", "–")
