"""The closed op set's switchboard. An op is a torch reference; a provider's faster version may stand in for it.

`use_providers` is called once when an engine starts; after that a call is one attribute read away from its kernel.
"""

from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

from octavo.registry import Registry

P = ParamSpec("P")
R = TypeVar("R")

OPS: dict[str, "Op"] = {}

IMPLS: Registry[Callable[..., object]] = Registry(
    "kernel",
    {
        "cpu/add_rms_norm": "octavo.kernels.cpu.rowwise:add_rms_norm",
        "cpu/embedding": "octavo.kernels.cpu.linear:embedding",
        "cpu/empty_pages": "octavo.kernels.cpu.pages:empty_pages",
        "cpu/empty_weight": "octavo.kernels.cpu.linear:empty_weight",
        "cpu/gelu_mul": "octavo.kernels.cpu.rowwise:gelu_mul",
        "cpu/gelu_tanh_mul": "octavo.kernels.cpu.rowwise:gelu_tanh_mul",
        "cpu/linear": "octavo.kernels.cpu.linear:linear",
        "cpu/logits": "octavo.kernels.cpu.linear:logits",
        "cpu/mask_logits": "octavo.kernels.cpu.sample:mask_logits",
        "cpu/paged_attention": "octavo.kernels.cpu.attention:paged_attention",
        "cpu/rank_tokens": "octavo.kernels.cpu.sample:rank_tokens",
        "cpu/rms_norm": "octavo.kernels.cpu.rowwise:rms_norm",
        "cpu/rope": "octavo.kernels.cpu.rowwise:rope",
        "cpu/sample": "octavo.kernels.cpu.sample:sample",
        "cpu/scale": "octavo.kernels.cpu.rowwise:scale",
        "cpu/silu_mul": "octavo.kernels.cpu.rowwise:silu_mul",
        "cpu/write_kv": "octavo.kernels.cpu.rowwise:write_kv",
    },
)
"""Key "<provider>/<op>". A provider's version takes what the reference takes and returns what it returns; it may
fall back to the reference itself for a shape it does not cover, never raise."""


class Op(Generic[P, R]):
    """One op: `reference` is the specification, `impl` what runs, `meta` makes a result on the meta device."""

    def __init__(self, reference: Callable[P, R]) -> None:
        self.name = reference.__name__
        self.reference = reference
        self.impl: Callable[P, R] = reference
        self.meta: Callable[P, R] = reference
        self.provider = "torch"
        self.__doc__ = reference.__doc__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.impl(*args, **kwargs)

    def meta_kernel(self, function: Callable[P, R]) -> None:
        """Take `function` for meta tensors, where torch would import its compiler's decompositions for the reference,
        which takes a second or two.
        """
        self.meta = function


def op(reference: Callable[P, R]) -> Op[P, R]:
    """Register a torch function as an op of the closed set."""
    made = Op(reference)
    OPS[made.name] = made
    return made


def use_providers(providers: tuple[str, ...]) -> dict[str, str]:
    """Choose, for every op, the first of `providers` that has it ("torch" always does). Returns op -> provider."""
    for made in list(OPS.values()):  # importing a kernel may bring in the op of another
        made.impl, made.provider = made.reference, "torch"
        for provider in providers:
            if f"{provider}/{made.name}" in IMPLS:
                made.impl, made.provider = IMPLS.load(f"{provider}/{made.name}"), provider
                break
    return {name: made.provider for name, made in OPS.items()}
