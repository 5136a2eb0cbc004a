"""Single values of versions.yaml: is this a pin, and is this how a consumer writes the architecture?

Each function returns None for a good value and (what is wrong, what to do) for a bad one.
"""

from __future__ import annotations

import re

from packaging.version import InvalidVersion, Version

Fault = tuple[str, str] | None

CAPABILITY = re.compile(r"[1-9]\d*\.\d")
MINOR = re.compile(r"[1-9]\d*\.\d+")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
COMMIT = re.compile(r"(?=.*[a-f])[0-9a-f]{7,40}")
RANGE = re.compile(r"[<>=~!^*, ]")


def version_fault(text: str, parts: int = 3) -> Fault:
    """Accept one release in its normal form, with at least `parts` numbers."""
    name = _not_a_release(text)
    if name:
        return f"{text!r} {name[0]}", name[1]
    version = Version(text)
    if str(version) != text:
        return f"{text!r} is not in normal form", f'write "{version}"'
    if len(version.release) < parts:
        full = ".".join(map(str, (*version.release, 0, 0)[:parts]))
        return f"{text!r} is not an exact version", f'write all {parts} numbers, such as "{full}", then inv lock'
    return None


def _not_a_release(text: str) -> Fault:
    if RANGE.search(text):
        return "is a range, not an exact version", "write the one release that the lock has, then inv lock"
    if COMMIT.fullmatch(text):
        kind = "commit" if len(text) == 40 else "short commit"
        return f"is a {kind}, not an exact version", "write the release; add what it lacks as a patch"
    try:
        Version(text)
    except InvalidVersion:
        return "is not an exact version: a branch or a tag can move", "write the release, then inv lock"
    return None


def local_fault(text: str, cuda: str) -> Fault:
    """Refuse a local tag of another CUDA flavour; `+cpu` is a choice, not a contradiction."""
    local = Version(text).local
    flavour = f"cu{cuda.replace('.', '')}"
    if local is None or local in ("cpu", flavour):
        return None
    plain = text.partition("+")[0]
    return f"{text!r} is built for {local}, the stack for CUDA {cuda}", f'write "{plain}" or "{plain}+{flavour}"'


def minor_fault(text: str) -> Fault:
    """Accept MAJOR.MINOR."""
    if MINOR.fullmatch(text):
        return None
    return f"{text!r} is not MAJOR.MINOR", 'write two numbers, such as "13.0"'


def toolkit_fault(text: str, cuda: str) -> Fault:
    """Accept a compiler's MAJOR.MINOR of a newer major than the CUDA of torch: one major's wheels are one tree."""
    fault = minor_fault(text)
    if fault is not None or minor_fault(cuda) is not None:
        return fault
    if text == cuda:
        return f"{text!r} is what cuda says already", "remove it: a stack without it compiles with torch's CUDA"
    if Version(text) < Version(cuda):
        return f"{text!r} is older than CUDA {cuda} of torch", "remove it, or name the CUDA of a newer major"
    if Version(text).major == Version(cuda).major:
        return f"{text!r} is of the same major as CUDA {cuda} of torch", "remove it: the wheels of both have one name"
    return None


def capability_fault(text: str) -> Fault:
    """Accept a compute capability as NVIDIA's tables write it."""
    if CAPABILITY.fullmatch(text):
        return None
    return f"{text!r} is not a compute capability", 'write it as `nvidia-smi --query-gpu=compute_cap` does: "12.0"'


def digest_fault(text: str) -> Fault:
    """Accept a full sha256 digest."""
    if DIGEST.fullmatch(text):
        return None
    return f"{text!r} is not a digest", "write sha256: and 64 hex digits, of the platform's manifest"


def arch_fault(text: str, capability: str, consumer: str) -> Fault:
    """Accept the GPU's own compute capability with the suffix that `consumer` takes (without the dot for cmake)."""
    number = capability.replace(".", "") if consumer == "cmake" else capability
    suffixes = _suffixes(capability, consumer)
    reason = _arch_reason(text, number, suffixes)
    if reason is None:
        return None
    return f"{text!r} {reason}", "write " + " or ".join(f'"{number}{suffix}"' for suffix in suffixes)


def _suffixes(capability: str, consumer: str) -> tuple[str, ...]:
    # Family targets exist from compute capability 10.0: CUDA Programming Guide, "Family-Specific Features".
    has_family = int(capability.partition(".")[0]) >= 10
    if not has_family or consumer == "exact":
        return ("a",)
    return ("f", "a")


def _arch_reason(text: str, number: str, suffixes: tuple[str, ...]) -> str | None:
    if text == "native":
        return "is the build machine's GPU, and a build needs none"
    if "+PTX" in text:
        return "ships PTX, which every start would compile again"
    if re.search(r"[;, ]", text):
        return "is a list, and an image is compiled for one GPU"
    if text == number:
        return "has no suffix: the kernels need what only an a or f target has"
    if text[:-1] != number and re.fullmatch(r"\d+(\.\d)?[af]?", text):
        return f"is not this GPU: compute_capability is {number}"
    return None if text in {f"{number}{suffix}" for suffix in suffixes} else "is not a target that this consumer takes"
