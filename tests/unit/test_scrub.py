"""What identifies a node, a card or an account does not get into a receipt; what explains stays."""

from __future__ import annotations

import pytest

from kiln.scrub import hash_name, scrub

pytestmark = pytest.mark.unit
UUID = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("rank 3 at 10.1.2.3:5000 left", "rank 3 at ADDRESS:5000 left"),
        ("[fe80::1%eth0]:22 and fd00:12::7", "[ADDRESS]:22 and ADDRESS"),
        (f"GPU-{UUID} fell off the bus", "GPU-UUID fell off the bus"),
        (f"MIG-{UUID}, machine {UUID}", "MIG-UUID, machine UUID"),
        ("Serial Number                 : 1654922006536", "Serial Number                 : SERIAL"),
        ('"serial": "ABC-123"', '"serial": "SERIAL"'),
        ("eth0 aa:bb:cc:dd:ee:0f up", "eth0 MAC up"),
        ("tcp://node7.rack2:29500 and grpc://n8:1", "tcp://HOST:29500 and grpc://HOST:1"),
        ("ssh: connect to alice@gpu7.lan port 22", "ssh: connect to alice@HOST port 22"),
        ("ip-10-0-3-17.internal is slow", "HOST is slow"),
        ("server_args: api_key='s3cr3tvalue', tp_size=8", "server_args: api_key='SECRET', tp_size=8"),
        ("HF_TOKEN=hf_AbCdEfGhIjKlMnOpQrSt", "HF_TOKEN=SECRET"),
        ("/home/alice/models/x", "/home/USER/models/x"),
    ],
)
def test_what_identifies_is_replaced(text: str, kept: str) -> None:
    assert scrub(text) == kept


@pytest.mark.parametrize(
    "text",
    [
        "GPU 3 at 0000:c1:00.0, Gen5 x16, 55.1 GB/s",
        "listening on 127.0.0.1:30000, 0.0.0.0 and [::1]:30000, http://localhost:30000/health",
        "nvidia-cublas==13.1.0.3 from libcublas.so.13.1.0.3, driver 580.95.05",
        "Decode batch. #running-req: 64, #token: 412311, token usage: 0.12, gen throughput (token/s): 3740.12",
        "at::native::add and cub::DeviceReduce at 12:03:11.250",
        "max_total_num_tokens=431252, token=None",
        "sha256:" + "5a" * 32,
    ],
)
def test_what_explains_is_kept(text: str) -> None:
    assert scrub(text, ["gpu7"]) == text


def test_given_names_go_whole_short_and_in_lower_case_and_no_part_of_another_word() -> None:
    found = scrub("GPU7.lan, gpu7 and gpu7.lan; not gpu71, my-gpu7 or GPU 7", ["GPU7.lan"])
    assert found == "HOST, HOST and HOST; not gpu71, my-gpu7 or GPU 7"


def test_an_address_that_is_a_name_is_not_cut_at_its_dots() -> None:
    assert scrub("10 GPUs at 10.0.0.5", ["10.0.0.5", "localhost", ""]) == "10 GPUs at ADDRESS"


def test_a_host_name_has_one_hash_however_it_is_spelled() -> None:
    assert hash_name("Node-7.") == hash_name(" node-7\n") == "c346d3879a21"
    assert hash_name("node-7") != hash_name("node-8")
