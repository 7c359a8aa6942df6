"""Weights of a GGUF file are those of the folder it was made from, whatever the storage type and the architecture."""

import re
import tracemalloc
from dataclasses import replace

import gguf
import numpy as np
import pytest
import torch

from octavo.errors import ModelError
from octavo.files.gguf_header import GGUFTensorInfo
from octavo.loader import weights
from octavo.loader.gguf_weights import dequantize
from octavo.loader.mapped import MappedFile
from octavo.loader.weights import iterate_weights
from tests.loader.gguf_files import add_rope_freqs, transformers_state, write_gguf
from tests.loader.specs import spec_of
from tests.tiny import FAMILIES

QUANTIZED = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"]
ALSO_READ = ["IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S", "IQ1_M", "TQ1_0", "TQ2_0", "MXFP4"]


def random_blocks(type_name: str, num_rows: int, num_columns: int) -> np.ndarray:
    """Rows of random blocks, bytes below 0x78 so that no half-precision scale is infinite or NaN."""
    block_elements, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type_name]]
    rng = np.random.default_rng(0)
    return rng.integers(0, 0x78, (num_rows, num_columns // block_elements * block_bytes), dtype=np.uint8)


def read(file: MappedFile, info: GGUFTensorInfo, path: str = "m") -> torch.Tensor:
    """All parts of a tensor; a part need not outlive the next one."""
    return torch.cat([part.clone() for part in dequantize(path, file, info)])


def stored(tmp_path, content: np.ndarray, type_name: str, shape: tuple[int, ...], offset: int = 64):
    path = tmp_path / "weights.gguf"
    path.write_bytes(bytes(offset) + content.tobytes())
    return MappedFile(str(path)), GGUFTensorInfo("blk.0.ffn_up.weight", type_name, shape, offset, content.nbytes)


@pytest.mark.parametrize("type_name", QUANTIZED + ALSO_READ)
def test_dequantized_values_are_those_of_the_gguf_package(tmp_path, monkeypatch, type_name):
    monkeypatch.setattr(weights, "PART_ELEMENTS", 1024)  # several parts, the last one smaller
    blocks = random_blocks(type_name, 7, 512)
    file, info = stored(tmp_path, blocks, type_name, (7, 512))
    expected = torch.from_numpy(gguf.dequantize(blocks, gguf.GGMLQuantizationType[type_name]))
    assert torch.equal(read(file, info), expected)
    assert expected.std() > 0


@pytest.mark.parametrize("type_name", ["F32", "BF16", "Q8_0"])
def test_parts_have_the_bits_of_the_whole_in_every_type(checkpoint, tmp_path, monkeypatch, type_name):
    spec = spec_of(write_gguf(checkpoint("llama"), tmp_path / "m.gguf", type_name))
    whole = dict(iterate_weights(spec, torch.float32))
    monkeypatch.setattr(weights, "PART_ELEMENTS", 500)  # parts end inside tensors, and one head may be more than a part
    for name, weight in iterate_weights(spec, torch.bfloat16):
        assert torch.equal(weight, whole[name] if name.endswith("norm.weight") else whole[name].bfloat16())


# Largest error of a value, by the largest magnitude around it. The symmetric types have one step less on one side.
ERRORS = {"Q4_0": 1 / 8, "Q4_1": 1 / 15, "Q5_0": 1 / 16, "Q5_1": 1 / 31, "Q8_0": 1 / 254, "BF16": 2**-8, "F16": 2**-11}


@pytest.mark.parametrize("type_name", ERRORS)
def test_what_was_quantized_comes_back_within_its_error(checkpoint, tmp_path, type_name):
    folder = checkpoint("qwen3", num_hidden_layers=1)
    original = dict(iterate_weights(spec_of(folder), torch.float32))
    spec = spec_of(write_gguf(folder, tmp_path / "m.gguf", type_name))
    for name, weight in iterate_weights(spec, torch.float32):
        largest = original[name].abs().max()
        assert (weight - original[name]).abs().max() <= 1.01 * largest * ERRORS[type_name] + 1e-7


@pytest.mark.parametrize(
    ("type_name", "dtype"), [("F32", torch.float32), ("F16", torch.float16), ("BF16", torch.bfloat16)]
)
@pytest.mark.parametrize("offset", [64, 67])
def test_plain_types_are_read_as_they_are(tmp_path, type_name, dtype, offset):
    values = torch.randn(3, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    content = values.view(torch.uint8).numpy()
    file, info = stored(tmp_path, content, type_name, (3, 5), offset)
    assert torch.equal(read(file, info), values)


def test_type_of_the_file_is_not_copied(tmp_path):
    file, info = stored(tmp_path, np.arange(64, dtype=np.float32), "F32", (64,))
    (part,) = dequantize("m", file, info)
    assert part.data_ptr() == file.read(info.offset, 1).data_ptr()


def test_dequantizing_needs_little_memory(tmp_path):
    blocks = random_blocks("Q6_K", 1024, 4096)
    file, info = stored(tmp_path, blocks, "Q6_K", (1024, 4096))
    del blocks
    tracemalloc.start()  # sees NumPy's scratch, and not torch's
    scratch = {
        part.untyped_storage().data_ptr(): part.untyped_storage().nbytes() for part in dequantize("m", file, info)
    }
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 8 << 20 and sum(scratch.values()) <= 4 * weights.PART_ELEMENTS


@pytest.mark.parametrize("type_name", ["I8", "Q8_1", "Q8_K"])
def test_type_that_is_no_weight_is_refused_by_name(tmp_path, type_name):
    file, info = stored(tmp_path, np.zeros(292, dtype=np.uint8), type_name, (256,))
    with pytest.raises(ModelError, match=f"model.gguf: tensor 'blk.0.ffn_up.weight' has the type {type_name}"):
        read(file, info, "model.gguf")


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "mistral"])
def test_weights_equal_those_of_the_folder(checkpoint, tmp_path, family):
    folder = checkpoint(family)
    expected = dict(iterate_weights(spec_of(folder), torch.float32))
    ours = dict(iterate_weights(spec_of(write_gguf(folder, tmp_path / "m.gguf")), torch.float32))
    assert ours.keys() == expected.keys()
    for name, weight in ours.items():
        # Gemma's norms went through + 1 and - 1.
        atol = 1.2e-7 if "gemma" in family and name.endswith("norm.weight") else 0.0
        torch.testing.assert_close(weight, expected[name], rtol=0, atol=atol)


def test_biases_of_rotated_heads_are_reordered_with_their_rows(checkpoint, tmp_path):
    folder = checkpoint("llama", attention_bias=True, mlp_bias=True)
    expected = dict(iterate_weights(spec_of(folder), torch.float32))
    spec = spec_of(write_gguf(folder, tmp_path / "m.gguf"))
    assert spec.hf_config["attention_bias"] and spec.hf_config["mlp_bias"]
    ours = dict(iterate_weights(spec, torch.float32))
    assert ours.keys() == expected.keys()
    assert all(torch.equal(ours[name], expected[name]) for name in ours)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma2", "gemma3"])
def test_weights_equal_transformers_own_reading(checkpoint, tmp_path, family):
    path = write_gguf(checkpoint(family), tmp_path / "m.gguf", "Q8_0")
    _, expected = transformers_state(path)
    for name, weight in iterate_weights(spec_of(path), torch.float32):
        assert torch.equal(weight, expected[name].reshape(weight.shape)), name


@pytest.mark.parametrize("tied", [True, False])
def test_head_is_tied_when_the_file_has_none(checkpoint, tmp_path, tied):
    spec = spec_of(write_gguf(checkpoint("qwen2", tie_word_embeddings=tied), tmp_path / "m.gguf"))
    assert spec.hf_config["tie_word_embeddings"] is tied
    assert ("lm_head.weight" in dict(iterate_weights(spec, torch.float32))) is not tied


def test_rope_freqs_are_part_of_the_config_and_no_weight(checkpoint, tmp_path):
    path = write_gguf(checkpoint("llama"), tmp_path / "m.gguf", extra=lambda w: add_rope_freqs(w, [2.0] * 8))
    assert not [name for name, _ in iterate_weights(spec_of(path), torch.float32) if "rope" in name]


def test_norms_stay_float32_and_the_rest_takes_the_dtype(checkpoint, tmp_path):
    path = write_gguf(checkpoint("gemma3"), tmp_path / "m.gguf", "Q8_0")
    for name, weight in iterate_weights(spec_of(path), torch.bfloat16):
        assert weight.dtype is (torch.float32 if name.endswith("norm.weight") else torch.bfloat16)
        assert weight.is_contiguous()


def test_tensor_that_the_model_does_not_have_is_named(checkpoint, tmp_path):
    def extra(writer):
        writer.add_tensor("blk.0.ssm_a.weight", np.zeros(4, dtype=np.float32))

    path = write_gguf(checkpoint("llama"), tmp_path / "m.gguf", extra=extra)
    with pytest.raises(ModelError, match=re.escape(str(path)) + r".*'blk\.0\.ssm_a\.weight'"):
        list(iterate_weights(spec_of(path), torch.float32))


def test_rows_that_are_not_those_of_the_heads_are_named(checkpoint, tmp_path):
    spec = spec_of(write_gguf(checkpoint("llama"), tmp_path / "m.gguf"))
    wrong = replace(spec, hf_config={**spec.hf_config, "num_attention_heads": 8})
    with pytest.raises(ModelError, match=r"'blk\.0\.attn_q\.weight' has 64 rows, not 8 x 16"):
        list(iterate_weights(wrong, torch.float32))
