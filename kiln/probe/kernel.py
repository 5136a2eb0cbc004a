"""A kernel to be checked: its name, the row counts to try, and how to get its result and what it should be."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from .child import NotRun

# A fault for one row count only was seen (3072 gave zeros, FlashInfer issue 3398), so one shape is no proof.
ROWS = (1, 9, 16, 128, 1536, 2048, 3072, 4096)


@dataclass(frozen=True)
class Case:
    """`measure(torch, rows)` returns the backend's result and a float64 reference, rows last but one."""

    name: str
    measure: Callable[[Any, int], tuple[Any, Any]]
    sweep: tuple[int, ...] = ROWS


def flashinfer(name: str = "flashinfer") -> ModuleType:
    """Import FlashInfer or one of its modules. Raises NotRun if it is not there."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise NotRun(f"no {name}: {error}") from None


def normal(torch: Any, *shape: int) -> Any:
    """Make BF16 numbers with a normal distribution."""
    return torch.randn(*shape, dtype=torch.float32, device="cuda").to(torch.bfloat16)
