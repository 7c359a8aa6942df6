"""Pools in huge pages: the same tensors as the reference's, whole pages in one piece."""

import torch

from octavo.config import KVGroupSpec
from octavo.kernels.cpu.pages import HUGE_PAGE, empty_pages
from octavo.ops.empty_pages import empty_pages as op

CPU = torch.device("cpu")
GROUP = KVGroupSpec("full", num_layers=3, num_kv_heads=2, head_dim=64)


def test_a_pool_has_the_shape_and_strides_of_the_reference_and_begins_a_huge_page() -> None:
    made, want = (make(GROUP, 400, 16, torch.bfloat16, CPU) for make in (empty_pages, op.reference))  # 10 MB
    assert (made.shape, made.stride(), made.dtype) == (want.shape, want.stride(), want.dtype)
    assert made.data_ptr() % HUGE_PAGE == 0
    made.fill_(2.0)  # all of it is there
    assert made.sum(dtype=torch.float32) == 2 * made.numel()


def test_a_page_is_one_piece_of_memory() -> None:
    pool = empty_pages(GROUP, 5, 16, torch.float32, CPU)
    page = pool[:, :, 4].transpose(1, 2)  # keys and values of a head side by side
    assert page.is_contiguous()
    assert pool[:, :, 4].data_ptr() - pool[:, :, 3].data_ptr() == page.numel() * 4
