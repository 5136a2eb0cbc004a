"""Device code: targets and stubs in what nvcc made of tests/data/audit/stubs.cu, and in what it never made."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiln.audit import cubin, facts, fatbin, sass
from kiln.audit.demangle import demangle, template
from kiln.audit.elf import Malformed
from kiln.audit.facts import Facts
from kiln.settings import ROOT
from tests.madeelf import shared_object

pytestmark = pytest.mark.unit

DATA = ROOT / "tests" / "data" / "audit"
STUBS = (DATA / "stubs.fatbin").read_bytes()
LZ4 = (DATA / "stubs-lz4.fatbin").read_bytes()


def look(data: bytes, compute_capability: str = "12.0", extract: facts.Extract = lambda _: ()) -> Facts:
    return facts.of(data, "x.so", fatbin.gpu(compute_capability), extract)


def cubin_of(target: str) -> bytes:
    (entries,) = fatbin.containers(STUBS)
    return next(fatbin.content(STUBS, entry) for entry in entries if entry.target == target)


def test_a_fatbin_tells_its_targets_with_their_suffixes() -> None:
    assert look(STUBS).targets == {"ptx_120a": 1, "sm_120a": 1, "sm_120f": 1, "sm_90": 1}


def test_a_fatbin_is_found_inside_a_shared_object() -> None:
    found = look(shared_object(needed=["libc.so.6"], data=STUBS))
    assert (found.targets, found.needed, found.parts, found.covered) == (look(STUBS).targets, ("libc.so.6",), 1, 1)


@pytest.mark.parametrize(
    ("compute_capability", "taken"),
    [("12.0", "sm_120a"), ("12.1", "sm_120f"), ("9.0", "sm_90"), ("10.0", None), ("8.9", None)],
)
def test_the_most_specific_target_is_taken(compute_capability: str, taken: str | None) -> None:
    assert list(look(STUBS, compute_capability).kernels) == ([taken] if taken else [])


@pytest.mark.parametrize(
    ("target", "compute_capability", "rank"),
    [
        ("sm_120a", "12.0", 3), ("sm_120f", "12.0", 2), ("sm_120", "12.0", 1), ("sm_121a", "12.0", 0),
        ("sm_100f", "12.0", 0), ("sm_120f", "12.1", 2), ("sm_120a", "12.1", 0), ("sm_80", "8.9", 1),
        ("sm_80", "9.0", 0),
        ("ptx_80", "12.0", 1), ("ptx_90a", "12.0", 0), ("ptx_121", "12.0", 0), ("ptx_100f", "10.3", 2),
    ],
)  # fmt: skip
def test_a_gpu_runs_what_the_driver_would_let_it(target: str, compute_capability: str, rank: int) -> None:
    assert fatbin.gpu(compute_capability).runs(target) == rank


@pytest.mark.parametrize("target", ["sm_120a", "sm_120f"])
def test_hollow_kernels_are_told_from_real_ones(target: str) -> None:
    kinds = {template(name): sass.stub(code) for name, code in cubin.kernels(cubin_of(target))}
    assert {name.partition("::")[0] + ":" + kind for name, kind in kinds.items()} == {
        "real:",
        "hollow:empty",
        "stops:trap",
    }


def test_a_kernel_guarded_by_its_arch_is_hollow_on_the_arch_left_out_alone() -> None:
    guarded = {capability: [one.template for one in look(STUBS, capability).stubs] for capability in ("12.0", "9.0")}
    assert "hollow::guarded" in guarded["12.0"]
    assert "hollow::guarded" not in guarded["9.0"]


def test_stubs_are_grouped_by_template_and_counted_against_all_of_it() -> None:
    found = {one.template: (one.kind, len(one.kernels), one.total) for one in look(STUBS).stubs}
    assert found["hollow::guarded"] == ("empty", 2, 2)


def test_a_cubin_tells_its_target_although_its_header_does_not() -> None:
    assert {cubin.target(cubin_of(target)) for target in ("sm_120a", "sm_120f")} == {"sm_120a", "sm_120f"}
    assert look(cubin_of("sm_90"), "9.0").targets == {"sm_90": 1}


def test_what_lz4_compressed_goes_through_the_tool() -> None:
    asked: list[str] = []

    def extract(target: str) -> list[bytes]:
        asked.append(target)
        return [cubin_of(target)]

    assert look(LZ4, extract=extract).kernels == {"sm_120a": 11}
    assert asked == ["sm_120a"]


def test_a_kernel_longer_than_any_stub_is_real() -> None:
    nops = struct.pack("<QQ", 0x918, 0)
    assert sass.stub(nops * sass.LIMIT_INSTRUCTIONS) == "empty"
    assert sass.stub(nops * (sass.LIMIT_INSTRUCTIONS + 1)) == ""


@pytest.mark.parametrize(
    ("mangled", "name"),
    [
        ("_Z5twicePf", "twice"),
        ("_ZN2ns4halfIfLi3EEEvPT_", "ns::half"),
        ("_ZN7cutlass13device_kernelIN5flash7ForwardIiEEEEvT_", "cutlass::device_kernel<flash::Forward>"),
        ("_ZN7cutlass13device_kernelINS_4gemm4GemmIiEEEEvT_", "cutlass::device_kernel<cutlass::gemm::Gemm>"),
        ("_ZN2ns12_GLOBAL__N_11kEv", "ns::{anonymous}::k"),
        ("plain_c", "plain_c"),
        ("_Z", "_Z"),
    ],
)
def test_a_template_is_read_off_the_mangled_name(mangled: str, name: str) -> None:
    assert template(mangled) == name


def test_a_name_that_is_none_stays_as_it_is() -> None:
    assert demangle("_ZN4nope") == "_ZN4nope"


@given(st.integers(0, len(STUBS)), st.binary(max_size=8))
def test_a_damaged_fatbin_is_a_fault_and_no_crash(at: int, garbage: bytes) -> None:
    found = look(STUBS[:at] + garbage + STUBS[at + len(garbage) :])
    assert isinstance(found.fault, str)


@given(st.data())
def test_a_damaged_cubin_is_a_fault_and_no_crash(data: st.DataObject) -> None:
    whole = cubin_of("sm_120a")
    damaged = bytearray(whole[: data.draw(st.integers(4, len(whole)))])
    for _ in range(4):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    assert isinstance(look(bytes(damaged)).fault, str)


@pytest.mark.parametrize("head", [b"\x7fELF\x01\x01" + bytes(90), b"\x7fELF\x02\x02" + bytes(90), b"\x7fELF"])
def test_an_elf_file_of_another_kind_is_no_fault(head: bytes) -> None:
    assert look(head) == Facts()


def test_a_kernel_s_code_outside_the_file_is_malformed() -> None:
    whole = cubin_of("sm_120a")
    offset = struct.unpack_from("<Q", whole, 0x28)[0]
    entry = next(
        at for at in range(offset, len(whole), 64) if struct.unpack_from("<Q", whole, at + 8)[0] & 4
    )  # fmt: skip
    broken = bytearray(whole)
    struct.pack_into("<Q", broken, entry + 24, 1 << 40)
    with pytest.raises(Malformed, match="lies outside the file"):
        list(cubin.kernels(bytes(broken)))
