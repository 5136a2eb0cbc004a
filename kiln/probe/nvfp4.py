"""NVFP4 in plain torch, for references: two E2M1 numbers in a byte, one E4M3 scale for 16 numbers, one global scale."""

from __future__ import annotations

from typing import Any

BLOCK = 16
_LARGEST, _LARGEST_SCALE = 6.0, 448.0
_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def global_scale(torch: Any, data: Any) -> Any:
    """Return the scale with which the block scales of `data` use the range of E4M3."""
    return (_LARGEST * _LARGEST_SCALE / data.abs().max().to(torch.float32)).reshape(1)


def dequantize(torch: Any, packed: Any, scales: Any, scale: Any) -> Any:
    """Return float64 numbers; `packed` is (rows, columns / 2) bytes, `scales` in the 128 × 4 layout."""
    data = packed.view(torch.uint8)
    rows, columns = data.shape[0], data.shape[1] * 2
    codes = torch.stack((data & 15, data >> 4), dim=-1).reshape(rows, columns).long()
    table = torch.tensor([*_VALUES, *(-one for one in _VALUES)], dtype=torch.float64, device=data.device)
    blocks = linear(torch, scales, rows, columns // BLOCK).repeat_interleave(BLOCK, dim=1)
    return table[codes] * blocks / scale.to(torch.float64)


def linear(torch: Any, scales: Any, rows: int, columns: int) -> Any:
    """Return block scales row by row, as float64, out of the layout that matrix units read.

    That layout is made of tiles of 128 rows and 4 columns; in a tile, row 32i+j stands at 16j+4i (cuBLAS, "1D block
    scaling factors layout").
    """
    tall, wide = -(-rows // 128), -(-columns // 4)
    tiles = scales.contiguous().view(torch.float8_e4m3fn).reshape(-1)[: tall * wide * 512].view(tall, wide, 32, 4, 4)
    whole = tiles.to(torch.float64).permute(0, 3, 2, 1, 4).reshape(tall * 128, wide * 4)
    return whole[:rows, :columns]
