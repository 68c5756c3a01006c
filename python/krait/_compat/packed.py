"""Lists of packed sequences [q 3], row, start and end, from seq_idx and cu_seqlens."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Sequences(NamedTuple):
    """rows [q 3] i64 on the host, for the kernels. On the device: row [q], first [q]: begins its row, last [b]: the
    index of the last sequence of each row."""

    rows: torch.Tensor
    row: torch.Tensor
    first: torch.Tensor
    last: torch.Tensor


def _from_marks(begins):
    """begins [b s]: a sequence begins here. Column 0 is set."""
    device, ns = begins.device, begins.shape[1]
    begins = begins.to("cpu")
    row, start = begins.nonzero(as_tuple=True)
    end = torch.cat([start[1:], start.new_zeros(1)])
    end = torch.where(end == 0, ns, end)
    counts = begins.sum(1)
    return Sequences(
        torch.stack([row, start, end], dim=1), row.to(device), (start == 0).to(device), (counts.cumsum(0) - 1).to(device)
    )


def from_seq_idx(seq_idx):
    """Where the numbers of seq_idx [b s] change, a sequence begins."""
    begins = torch.ones_like(seq_idx, dtype=torch.bool)
    begins[:, 1:] = seq_idx[:, 1:] != seq_idx[:, :-1]
    return _from_marks(begins)


def from_cu_seqlens(cu_seqlens, ns):
    """One row of ns tokens, cut at cu_seqlens [n+1]. Tokens after the last cut are a sequence of their own."""
    begins = torch.zeros(1, ns + 1, dtype=torch.bool, device=cu_seqlens.device)
    begins[0, cu_seqlens.long()] = True
    begins[0, 0] = True
    return _from_marks(begins[:, :ns])
