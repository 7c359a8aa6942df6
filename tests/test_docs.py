"""The "add a ..." pages, followed literally: their code blocks are written to files, registered, and used."""

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from octavo.loader.weights import iterate_weights
from octavo.models.build import load_model
from octavo.models.registry import MODELS
from octavo.ops.dispatch import IMPLS, OPS, use_providers
from octavo.parsers.registry import REASONING_FORMATS, TOOL_FORMATS, pick_reasoning_format, pick_tool_format
from octavo.platforms.cpu import CpuPlatform
from octavo.platforms.registry import PLATFORMS, select_platform
from octavo.quantization.registry import QUANT_METHODS
from octavo.registry import Registry
from tests.parsers.samples import read
from tests.tiny import random_prompt, reference_logits, reference_model, run_model, spec_for, tiny_checkpoint

ROOT = Path(__file__).parents[1]


def code_of(page: str) -> str:
    """The first Python block of a page, without its indentation."""
    text = (ROOT / "docs" / page).read_text()
    match = re.search(r"^( *)```python\n(.*?)^\1```", text, re.DOTALL | re.MULTILINE)
    assert match, page
    return re.sub(rf"^{match[1]}", "", match[2], flags=re.MULTILINE)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An importable package `foo_plugin`, as somebody outside the tree would have one."""
    folder = tmp_path / "foo_plugin"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "foo_plugin"]:
        del sys.modules[name]


def test_the_tool_format_of_the_page_is_picked_and_reads_its_calls(package: Path, monkeypatch: pytest.MonkeyPatch):
    (package / "foo.py").write_text(code_of("add-a-tool-format.md"))
    register(monkeypatch, TOOL_FORMATS, "foo", "foo_plugin.foo:FOO")
    register(monkeypatch, REASONING_FORMATS, "foo", "foo_plugin.foo:FOO_THINK")
    call = '<foo:call>{"name": "weather", "arguments": {"city": "Ulm"}}</foo:call>'
    assert pick_tool_format([call]) == "foo" == pick_reasoning_format(["<foo:think>"])
    said = read(f"<foo:think>Hm.</foo:think> Well, {call}", "foo", "foo")
    assert (said.reasoning, said.content, said.values) == ("Hm.", "Well,", [{"city": "Ulm"}])


def register(monkeypatch: pytest.MonkeyPatch, registry: Registry[object], name: str, target: str) -> None:
    monkeypatch.setattr(registry, "_targets", registry._targets | {name: target})


def test_the_model_of_the_page_equals_a_llama_with_that_one_bias(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torch_references: None
):
    (package / "foo.py").write_text(code_of("add-a-model.md"))
    register(monkeypatch, MODELS, "FooForCausalLM", "foo_plugin.foo:Foo")
    # A Llama whose q, k and v biases are zero is a Foo.
    folder = tiny_checkpoint("llama", tmp_path / "model", attention_bias=True)
    model = reference_model(folder)
    for name, parameter in model.named_parameters():
        if name.endswith(("q_proj.bias", "k_proj.bias", "v_proj.bias")):
            parameter.data.zero_()
    model.save_pretrained(folder)

    spec = spec_for(folder, architectures=["FooForCausalLM"])
    weights = (
        (name, tensor)
        for name, tensor in iterate_weights(spec, torch.float32)
        if not name.endswith(("q_proj.bias", "k_proj.bias", "v_proj.bias"))
    )
    foo = load_model(spec, torch.float32, torch.device("cpu"), weights)
    prompt = random_prompt(60)
    (logits,) = run_model(foo, [prompt])
    expected = reference_logits(folder, prompt)
    assert torch.allclose(logits, expected, atol=1e-4)


def test_the_kernel_of_the_page_replaces_the_reference(
    package: Path, monkeypatch: pytest.MonkeyPatch, torch_references: None
):
    (package / "silu_mul.py").write_text(code_of("add-a-kernel.md"))
    register(monkeypatch, IMPLS, "foo/silu_mul", "foo_plugin.silu_mul:silu_mul")
    assert use_providers(("foo", "torch"))["silu_mul"] == "foo"
    silu_mul = OPS["silu_mul"]
    for dtype in (torch.float32, torch.float16):
        x = torch.randn(3, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
        assert torch.allclose(silu_mul(x), silu_mul.reference(x), atol=1e-6)


def test_the_quantization_format_of_the_page_is_close_to_the_plain_product(
    package: Path, monkeypatch: pytest.MonkeyPatch
):
    (package / "int8.py").write_text(code_of("add-a-quantization-format.md"))
    register(monkeypatch, QUANT_METHODS, "int8", "foo_plugin.int8:Int8Weights")
    generator = torch.Generator().manual_seed(0)
    plain = {part: torch.randn(rows, 64, generator=generator) for part, rows in (("gate_proj", 24), ("up_proj", 40))}
    biases = {part: torch.randn(len(weight), generator=generator) for part, weight in plain.items()}
    weights = QUANT_METHODS.load("int8")(64, {"gate_proj": 24, "up_proj": 40}, True, torch.float32, torch.device("cpu"))
    for part, suffix, slot in reversed(list(weights.slots())):
        slot.write({"weight": plain, "bias": biases}[suffix][part])
    x = torch.randn(5, 64, generator=generator)
    expected = torch.cat([x @ plain[part].T + biases[part] for part in plain], dim=1)
    error = (weights.apply(x) - expected).abs().max()
    assert 0 < error < 0.02 * expected.abs().max()


def test_a_platform_is_one_class_and_one_line(package: Path, monkeypatch: pytest.MonkeyPatch):
    (package / "foo.py").write_text(
        '"""Foo devices."""\nfrom octavo.platforms.cpu import CpuPlatform\n\n\n'
        'class FooPlatform(CpuPlatform):\n    """A CPU without kernels."""\n\n'
        '    name = "foo"\n    providers = ("torch",)\n'
    )
    register(monkeypatch, PLATFORMS, "foo", "foo_plugin.foo:FooPlatform")
    platform = select_platform("foo")
    assert platform.name == "foo" and platform.providers == ("torch",)
    assert isinstance(platform, CpuPlatform)


@pytest.mark.parametrize("page", [*sorted(path.name for path in (ROOT / "docs").glob("*.md")), "../README.md"])
def test_links_and_files_that_a_page_names_exist(page: str):
    path = ROOT / "docs" / page
    text = path.read_text()
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (path.parent / target).exists(), f"{page} links to {target}"
    for name in re.findall(r"`((?:octavo|tests|csrc|scripts|docs)/[\w./-]+\.(?:py|h|cpp|md))`", text):
        if "foo" not in name.lower():
            assert (ROOT / name).exists(), f"{page} names {name}"
