"""Rows to sample: what each asks for, as columns of `SampleParams`."""

from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.ops.random import DrawKeys
from octavo.ops.sample import SampleParams


@dataclass
class Row:
    """How one row is sampled."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    sample_index: int = 0
    position: int = 0


def make_params(rows: list[Row]) -> SampleParams:
    def column(name: str, dtype: torch.dtype) -> Tensor:
        return torch.tensor([getattr(row, name) for row in rows], dtype=dtype)

    whole = torch.int64
    return SampleParams(
        temperature=column("temperature", torch.float32),
        top_k=column("top_k", whole),
        top_p=column("top_p", torch.float64),
        min_p=column("min_p", torch.float64),
        keys=DrawKeys(column("seed", whole), column("sample_index", whole), column("position", whole)),
    )


def random_logits(num_rows: int, vocab_size: int, scale: float = 3.0, seed: int = 0) -> Tensor:
    return scale * torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed))


SETTINGS = [
    Row(),
    Row(temperature=0.7),
    Row(temperature=50.0),
    Row(temperature=0.01),
    Row(top_p=0.9),
    Row(temperature=2.0, top_p=0.99),
    Row(top_p=0.05),
    Row(top_k=5),
    Row(top_k=40, temperature=1.7),
    Row(min_p=0.1),
    Row(min_p=0.02, temperature=3.0),
    Row(top_k=20, top_p=0.8),
    Row(top_k=300, min_p=0.01, top_p=0.6, temperature=1.5),
]
