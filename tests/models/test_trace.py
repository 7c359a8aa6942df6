"""A model's plan: what it says, where its buffers lie, and what cannot be traced."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor

from octavo.attention.batch import ForwardBatch
from octavo.models.base import CausalLM
from octavo.models.build import build_model
from octavo.models.registry import MODELS
from octavo.models.trace import Recorder, named_weights, symbolic_batch, trace
from octavo.ops.dispatch import OPS
from octavo.ops.plan import Plan, Untraceable
from octavo.ops.scale import scale
from tests.tiny import FAMILIES, new_pool, spec_for, tiny_checkpoint

META = torch.device("meta")


def empty_model(family: str, folder: Path, **settings: object) -> CausalLM:
    """A model without values, of a family's smallest config."""
    return build_model(spec_for(tiny_checkpoint(family, folder, **settings)), torch.bfloat16, META)


def pools_of(model: CausalLM) -> list[Tensor]:
    return [new_pool(spec, 5, 16, torch.bfloat16) for spec in model.kv_groups]


def plan_of(model: CausalLM) -> Plan:
    return trace(model, pools_of(model))


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[type[CausalLM], Plan]:
    """The plans of all families."""
    models = [empty_model(family, tmp_path_factory.mktemp(family)) for family in FAMILIES]
    return {type(model): plan_of(model) for model in models}


def test_every_registered_model_is_traced(plans: dict[type[CausalLM], Plan]) -> None:
    assert set(plans) == {MODELS.load(name) for name in MODELS}
    for plan in plans.values():
        assert plan.output.shape[1:] == (64,) and plan.output.dtype is torch.bfloat16
        assert plan.calls[0].op == "embedding" and plan.output.base == plan.calls[-1].args["out"].base


def test_a_plan_reads_like_the_model(tmp_path: Path) -> None:
    model = empty_model("granite", tmp_path, num_hidden_layers=1, attention_bias=True)
    assert str(plan_of(model)) == (
        """\
inputs: input_ids int64, positions int64, query_start.0 int32, seq_lens.0 int32, block_table.0 int32, \
slot_mapping.0 int64, pages.0 bfloat16
arena: 832 bytes per token
  b0 [T, 64] bfloat16 at 0
  b1 [T, 64] bfloat16 at 128
  b2 [T, 128] bfloat16 at 256
  b3 [T, 4, 16] bfloat16 at 128
  b4 [T, 64] bfloat16 at 256
  b5 [T, 64] bfloat16 at 128
  b6 [T, 192] bfloat16 at 256
  b7 [T, 96] bfloat16 at 640
  b8 [T, 64] bfloat16 at 128
  b9 [T, 64] bfloat16 at 256
ops:
  b0 = embedding(ids=input_ids, weight=model.embed_tokens.weight)
  scale(x=b0, factor=6.0)
  b1 = rms_norm(x=b0, weight=model.layers.0.input_layernorm.weight, eps=1e-06)
  b2 = linear(x=b1, weight=model.layers.0.self_attn.qkv_proj.weight, \
bias=model.layers.0.self_attn.qkv_proj.bias)
  rope(q=b2[:, 0:64] as 4 x 16, k=b2[:, 64:96] as 2 x 16, positions=positions, \
cos_sin=model.layers.0.self_attn.cos_sin, interleaved=False)
  write_kv(k=b2[:, 64:96] as 2 x 16, v=b2[:, 96:128] as 2 x 16, pages=pages.0, slot_mapping=slot_mapping.0)
  b3 as 4 x 16 = paged_attention(q=b2[:, 0:64] as 4 x 16, pages=pages.0, \
batch=(query_start.0, seq_lens.0, block_table.0), scale=0.17)
  b4 = linear(x=b3, weight=model.layers.0.self_attn.o_proj.weight, bias=model.layers.0.self_attn.o_proj.bias)
  scale(x=b4, factor=0.41)
  b5 = add_rms_norm(x=b4, residual=b0, weight=model.layers.0.post_attention_layernorm.weight, eps=1e-06)
  b6 = linear(x=b5, weight=model.layers.0.mlp.gate_up_proj.weight)
  b7 = silu_mul(x=b6)
  b8 = linear(x=b7, weight=model.layers.0.mlp.down_proj.weight)
  scale(x=b8, factor=0.41)
  b9 = add_rms_norm(x=b8, residual=b0, weight=model.norm.weight, eps=1e-06)
returns b9"""
    )


def test_buffers_share_places_but_never_while_both_are_used(plans: dict[type[CausalLM], Plan]) -> None:
    for plan in plans.values():
        uses: dict[str, list[int]] = {name: [] for name in plan.buffers}
        for index, call in enumerate(plan.calls):
            for view in call.views():
                uses.get(view.base, []).append(index)
        uses[plan.output.base].append(len(plan.calls))
        buffers = list(plan.buffers.values())
        for i, one in enumerate(buffers):
            assert one.offset % 64 == 0 and one.offset + one.row_bytes <= plan.arena_bytes
            for other in buffers[:i]:
                together = max(min(uses[one.name]), min(uses[other.name])) <= min(
                    max(uses[one.name]), max(uses[other.name])
                )
                apart = one.offset + one.row_bytes <= other.offset or other.offset + other.row_bytes <= one.offset
                assert apart or not together, (one, other)
        assert plan.arena_bytes < sum(buffer.row_bytes for buffer in buffers) / 3


class Doubled(MODELS.load("LlamaForCausalLM")):  # type: ignore[misc]
    """Computes outside the op set."""

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Twice the hidden states."""
        return super().forward(batch) * 2


class Shortened(MODELS.load("LlamaForCausalLM")):  # type: ignore[misc]
    """Leaves out a token."""

    def forward(self, batch: ForwardBatch) -> Tensor:
        """All hidden states but the first."""
        return super().forward(batch)[1:]


def test_a_part_of_the_tokens_is_refused(tmp_path: Path) -> None:
    model = empty_model("llama", tmp_path)
    model.__class__ = Shortened
    with pytest.raises(Untraceable, match="it takes apart the tokens of b25"):
        plan_of(model)


def test_a_model_is_traced_in_inference_mode_too(tmp_path: Path) -> None:
    model = empty_model("llama", tmp_path)
    with torch.inference_mode():
        assert str(plan_of(model)).endswith("returns b25")


def test_what_is_no_op_and_no_view_is_named(tmp_path: Path) -> None:
    model = empty_model("llama", tmp_path)
    model.__class__ = Doubled
    with pytest.raises(Untraceable, match=r"it calls aten\.mul\.Tensor, which is neither an op nor a view"):
        plan_of(model)
    assert all(made.impl is made.reference for made in OPS.values())


def test_a_tensor_from_nowhere_is_refused(tmp_path: Path) -> None:
    model = empty_model("llama", tmp_path)
    recorder, stray = Recorder(symbolic_batch(pools_of(model)), named_weights(model)), torch.ones(3, 4)
    with recorder.listening(), recorder, pytest.raises(Untraceable, match="no weight, no input and no result"):
        scale(stray, 2.0)


def test_a_rope_that_depends_on_lengths_is_not_traced(tmp_path: Path) -> None:
    dynamic = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    model = build_model(spec_for(tiny_checkpoint("llama", tmp_path), rope_parameters=dynamic), torch.bfloat16, META)
    with pytest.raises(Untraceable, match="aten"):
        plan_of(model)


def test_ops_of_another_thread_run_while_a_model_is_traced(tmp_path: Path) -> None:
    model = empty_model("llama", tmp_path)
    recorder = Recorder(symbolic_batch(pools_of(model)), named_weights(model))
    x = torch.ones(3, 4)
    with recorder.listening(), recorder:
        other = threading.Thread(target=scale, args=(x, 2.0))
        other.start()
        other.join()
    assert (x == 2).all()


def test_a_trace_does_not_import_a_compiler(tmp_path: Path) -> None:
    folder = tiny_checkpoint("gemma3", tmp_path)
    script = (
        "import sys, torch\n"
        "from pathlib import Path\n"
        "from octavo.models.build import build_model\n"
        "from octavo.models.trace import trace\n"
        "from tests.tiny import new_pool, spec_for\n"
        "model = build_model(spec_for(Path(sys.argv[1])), torch.bfloat16, torch.device('meta'))\n"
        "trace(model, [new_pool(spec, 5, 16, torch.bfloat16) for spec in model.kv_groups])\n"
        "print([name for name in ('sympy', 'torch._dynamo', 'torch._inductor') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", script, folder], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]", done.stdout
