"""The torch references against formulas written another way."""

import math

import pytest
import torch
import torch.nn.functional as F

from octavo.attention.batch import AttentionBatch
from octavo.ops.add_rms_norm import add_rms_norm
from octavo.ops.gelu_mul import gelu_mul
from octavo.ops.gelu_tanh_mul import gelu_tanh_mul
from octavo.ops.layer_norm import layer_norm
from octavo.ops.linear import linear
from octavo.ops.logits import logits
from octavo.ops.paged_attention import KV_SPLIT, paged_attention
from octavo.ops.rms_norm import rms_norm
from octavo.ops.rope import rope
from octavo.ops.silu_mul import silu_mul
from octavo.ops.write_kv import write_kv
from tests.ops.test_providers import Make, attention_case


def test_rms_norm_rounds_once() -> None:
    make = Make(torch.bfloat16)
    x, weight = make(50, 96), make(96)
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()
    assert torch.equal(rms_norm(x, weight, 1e-6), exact.to(torch.bfloat16))


def test_norms_may_write_over_their_input() -> None:
    make = Make(torch.float32)
    x, weight, bias = make(5, 64), make(64), make(64)
    for norm, rest in ((rms_norm, (weight, 1e-6)), (layer_norm, (weight, bias, 1e-6))):
        expected, inplace = norm(x, *rest), x.clone()
        assert norm(inplace, *rest, out=inplace) is inplace
        assert torch.equal(inplace, expected)


def test_add_rms_norm_leaves_the_rounded_sum_in_the_residual() -> None:
    make = Make(torch.bfloat16)
    x, residual, weight = make(5, 64), make(5, 64), make(64)
    total = (x.float() + residual.float()).bfloat16()
    normed = add_rms_norm(x, residual, weight, 1e-6)
    assert torch.equal(residual, total)
    assert torch.equal(normed, rms_norm(total, weight, 1e-6))


@pytest.mark.parametrize(
    ("op", "activation"),
    [
        (silu_mul, lambda x: x / (1 + (-x).exp())),
        (gelu_mul, lambda x: x * (1 + (x / math.sqrt(2)).erf()) / 2),
        (gelu_tanh_mul, lambda x: x / 2 * (1 + (math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)).tanh())),
    ],
)
def test_gate_is_the_first_half(op, activation) -> None:
    x = Make(torch.float32)(6, 20)
    expected = activation(x[:, :10].double()) * x[:, 10:].double()
    torch.testing.assert_close(op(x), expected.float(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op", [silu_mul, gelu_mul, gelu_tanh_mul])
@pytest.mark.parametrize("width", [61, 80, 176])
def test_an_activation_has_the_same_bits_wherever_its_row_lies_and_threads_cut_the_batch(op, width) -> None:
    x, threads = Make(torch.float32)(535, 2 * width), torch.get_num_threads()
    alone = torch.cat([op(row) for row in x.split(1)])
    try:
        for count in (1, 2, 3, 4):
            torch.set_num_threads(count)
            assert torch.equal(op(x), alone)
    finally:
        torch.set_num_threads(threads)


def test_logits_do_not_lose_bits_of_bfloat16_weights() -> None:
    make = Make(torch.bfloat16)
    x, weight = make(3, 64), make(5000, 64)
    exact = x.double() @ weight.double().t()
    assert logits(x, weight).dtype == torch.float32
    torch.testing.assert_close(logits(x, weight).double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rope_is_a_complex_rotation_of_the_first_dimensions(interleaved: bool) -> None:
    make = Make(torch.float32)
    q, k = make(4, 3, 12), make(4, 1, 12)
    angles = make(9, 4) * 3
    positions = torch.tensor([8, 0, 3, 3])

    def rotated(x: torch.Tensor) -> torch.Tensor:
        pairs = x[..., :8].unflatten(-1, (4, 2)) if interleaved else x[..., :8].unflatten(-1, (2, 4)).transpose(-1, -2)
        turn = torch.polar(torch.ones(4, 4), angles[positions]).unsqueeze(1)
        turned = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * turn)
        flat = turned.flatten(-2) if interleaved else turned.transpose(-1, -2).flatten(-2)
        return torch.cat((flat, x[..., 8:]), -1)

    expected = rotated(q), rotated(k)
    rope(q, k, positions, torch.cat((angles.cos(), angles.sin()), 1), interleaved)
    torch.testing.assert_close((q, k), expected, rtol=1e-5, atol=1e-6)


def test_write_kv_puts_each_token_at_its_slot_and_touches_nothing_else() -> None:
    make = Make(torch.float32)
    pages = torch.zeros(2, 3, 2, 4, 8)
    k, v = make(3, 2, 8), make(3, 2, 8)
    write_kv(k, v, pages, torch.tensor([6, -1, 11]))
    assert torch.equal(pages[0, 1, :, 2], k[0])
    assert torch.equal(pages[1, 2, :, 3], v[2])
    assert pages.count_nonzero() == 2 * 2 * 2 * 8


def test_write_kv_without_values_fills_one_plane_and_narrow_values_leave_the_rest() -> None:
    make = Make(torch.float32)
    k, v, slots = make(2, 1, 8), make(2, 1, 6), torch.tensor([1, 5])
    pages = torch.zeros(2, 2, 1, 4, 8)
    write_kv(k, v, pages, slots)
    assert torch.equal(pages[1, 1, 0, 1, :6], v[1, 0])
    assert pages[1].count_nonzero() == 12
    latent = torch.zeros(1, 2, 1, 4, 8)
    write_kv(k, None, latent, slots)
    assert torch.equal(latent[0], pages[0])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"window": 7},
        {"window": 300},
        {"softcap": 1.2},
        {"softcap": 2.0, "window": 20, "sinks": torch.tensor([0.3, -1.0, 2.0, 0.0])},
        {"alibi_slopes": torch.tensor([0.5, 0.1, 0.0, 0.02]), "sinks": torch.tensor([0.3, -1.0, 2.0, 0.0])},
        {"value_dim": 24},
    ],
    ids=str,
)
@pytest.mark.parametrize("block", [4, 48, 512])
def test_paged_attention_is_softmax_over_the_tokens_a_query_sees(block: int, options: dict) -> None:
    case = attention_case(Make(torch.float32), [(1, 1), (3, 3), (1, 400), (70, 330)], block=block, padding=2, **options)
    out = paged_attention(**case)
    assert torch.equal(out[-2:], torch.zeros_like(out[-2:]))
    batch: AttentionBatch = case["batch"]
    for row, end in enumerate(batch.seq_lens.tolist()):
        tokens = range(int(batch.query_start[row]), int(batch.query_start[row + 1]))
        for token in {*tokens[::7], tokens[-1]}:
            expected = one_query(case, row, token, position=end - tokens.stop + token)
            torch.testing.assert_close(out[token], expected, rtol=1e-5, atol=1e-5)


def one_query(case: dict, row: int, token: int, position: int) -> torch.Tensor:
    """[H, D], head by head in float64."""
    pages, table, block = case["pages"], case["batch"].block_table[row], case["pages"].shape[3]
    first = 0 if case["window"] is None else max(0, position - case["window"] + 1)
    seen = range(first, position + 1)
    heads, groups = case["q"].shape[1], pages.shape[2]
    results = []
    for head in range(heads):
        keys, values = (
            torch.stack([cache[table[p // block], head // (heads // groups), p % block] for p in seen]).double()
            for cache in pages
        )
        scores = keys @ case["q"][token, head].double() * case["scale"]
        values = values[:, : case.get("value_dim")]
        if case["softcap"] is not None:
            scores = (scores / case["softcap"]).tanh() * case["softcap"]
        if case.get("alibi_slopes") is not None:
            scores = scores - case["alibi_slopes"][head] * (position - torch.tensor(seen))
        if case.get("sinks") is not None:
            scores = torch.cat((scores, case["sinks"][head : head + 1].double()))
        results.append((scores.softmax(0)[: len(seen)] @ values).float())
    return torch.stack(results)


def test_one_plane_of_pages_gives_values_that_are_the_beginning_of_the_keys() -> None:
    case = attention_case(Make(torch.float32), [(1, 300), (4, 30)], groups=1, value_dim=24)
    case["pages"][1] = case["pages"][0]
    expected = paged_attention(**case)
    assert torch.equal(paged_attention(**{**case, "pages": case["pages"][:1]}), expected)
    assert expected.shape == (5, 4, 24)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_of_a_product_has_the_same_bits_in_any_small_batch(dtype: torch.dtype) -> None:
    make = Make(dtype)
    x, weight, bias = make(16, 200), make(72, 200), make(72)
    for op, rest in ((linear, (weight,)), (linear, (weight, bias)), (logits, (weight,))):
        together = op(x, *rest)
        for num_rows in (1, 2, 3, 7, 15):
            assert torch.equal(op(x[:num_rows], *rest), together[:num_rows])


def test_a_decoding_row_has_the_same_bits_alone_and_in_any_batch() -> None:
    rows = [(1, end) for end in (3, KV_SPLIT, KV_SPLIT + 1, 700, 40)]
    case = attention_case(Make(torch.float32), [*rows, (30, 500)])
    together = paged_attention(**case)
    batch: AttentionBatch = case["batch"]
    for row in range(len(rows)):
        alone = AttentionBatch(
            query_start=torch.tensor([0, 1], dtype=torch.int32),
            seq_lens=batch.seq_lens[row : row + 1],
            block_table=batch.block_table[row : row + 1],
            slot_mapping=batch.slot_mapping,
            max_query_len=1,
            max_seq_len=int(batch.seq_lens[row]),
        )
        assert torch.equal(paged_attention(**{**case, "q": case["q"][row : row + 1], "batch": alone})[0], together[row])


def test_a_block_that_the_window_has_passed_is_never_read() -> None:
    case = attention_case(Make(torch.float32), [(1, 100), (5, 60)], window=10, block=4)
    expected = paged_attention(**case)
    table = case["batch"].block_table
    table[0, : (100 - 10) // 4] = -1
    table[1, : (60 - 5 + 1 - 10) // 4] = -1
    assert torch.equal(paged_attention(**case), expected)
    assert F.cosine_similarity(expected, torch.ones_like(expected), dim=-1).isfinite().all()
