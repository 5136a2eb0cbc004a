"""Cubins: the ELF file of one translation unit's machine code for one target."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kiln.audit import elf
from kiln.audit.elf import Buffer

_CODE = ".text."
# Every kernel has a bank of its own for its parameters; a device function has none.
_PARAMETERS = ".nv.constant0."
# ptxas's command line in `.note.nv.tkinfo`; e_flags do not tell sm_120a from sm_120.
_ARCH = re.compile(rb"-arch (sm_\d+[af]?) ")


def is_cubin(data: Buffer) -> bool:
    """Say whether an ELF file is device code."""
    return elf.machine(data) == elf.EM_CUDA


def kernels(data: Buffer) -> Iterator[tuple[str, bytes]]:
    """Yield the mangled name and the code of every kernel. Raises Malformed."""
    table = elf.sections(data)
    entries = {section.name.removeprefix(_PARAMETERS) for section in table if section.name.startswith(_PARAMETERS)}
    for section in table:
        name = section.name.removeprefix(_CODE)
        if section.name.startswith(_CODE) and name in entries:
            if section.nobits:
                raise elf.Malformed(f"the code of {name} lies outside the file")
            yield name, elf.content(data, section)


def target(data: Buffer) -> str:
    """Return the target that the file was assembled for: `sm_120a`."""
    for section in elf.sections(data):
        if section.name.startswith(".note.nv.tkinfo") and (found := _ARCH.search(elf.content(data, section))):
            return found[1].decode()
    flags = elf.flags(data)
    return f"sm_{flags >> 8 & 0xFF if flags >> 24 else flags & 0xFF}"
