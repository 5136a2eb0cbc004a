"""Machine code of sm_70 and later, 16 bytes an instruction: which kernels do nothing.

Opcodes are the low nine bits; their names are those of nvdisasm 12.8 to 13.3, looked up on sm_75 to sm_120a.
"""

from __future__ import annotations

import struct

INSTRUCTION_BYTES = 16
LIMIT_INSTRUCTIONS = 128
"""A body beyond this is no stub: the longest seen, CUTLASS's `printf` and trap, has 36 instructions."""

_NOP, _CALL, _TRAP = 0x118, (0x143, 0x144), 0x15C
# Registers, integers, predicates and control flow: no memory but constants, no arithmetic on data, no call.
_IDLE = frozenset({
    0x002, 0x003, 0x004, 0x005, 0x007, 0x00C, 0x010, 0x011, 0x012, 0x016, 0x019, 0x01C,  # MOV … PLOP3
    0x024, 0x025, 0x02D, 0x02E, 0x02F, 0x031, 0x035, 0x036,  # IMAD … VIADD; HFMA2 as a move
    0x082, 0x087, 0x08C, 0x090, 0x091, 0x092, 0x097, 0x099, 0x0A4, 0x0A5, 0x0B9, 0x0CA,  # UMOV … ULDC, R2UR
    _NOP, 0x119, 0x11A, 0x11B, 0x11D, 0x141, 0x145, 0x146, 0x147, 0x148, 0x14D, 0x150,  # S2R, BAR, BRA, EXIT, RET
    0x182, 0x1AC, 0x1C2, 0x1C3, 0x1C7, 0x1C8,  # LDC, LDCU, R2UR, S2UR, UCGABAR, USETMAXREG
})  # fmt: skip
# What a `printf` before a trap needs on top: CALL, LEPC, STL.
_PRINTING = frozenset({*_CALL, 0x14E, 0x187})


def instructions(code: bytes) -> int:
    """Count instructions, padding included."""
    return len(code) // INSTRUCTION_BYTES


def stub(code: bytes) -> str:
    """Tell what a kernel's body is: "" real, "empty" it can have no effect, "trap" it can only stop the program."""
    if instructions(code) > LIMIT_INSTRUCTIONS:
        return ""
    opcodes = {word & 0x1FF for word, _ in struct.iter_unpack("<QQ", code[: instructions(code) * INSTRUCTION_BYTES])}
    if _TRAP in opcodes:
        return "trap" if opcodes <= _IDLE | _PRINTING | {_TRAP} else ""
    return "empty" if opcodes <= _IDLE else ""
