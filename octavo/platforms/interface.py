"""What the rest of the engine asks of the device it runs on. One object per engine, chosen once by
`platforms.registry.select_platform`; nothing above asks which kind of device it is. Only methods that need torch import
it, since the HTTP process asks for defaults only.
"""

from typing import Protocol

from octavo.config import DType


class Platform(Protocol):
    """A kind of device.

    Attributes:
        name: value of `--device`, e.g. "cpu".
        device: where weights, pages and batches live, as torch spells it: "cpu", "cuda:0".
        default_dtype: what `--dtype auto` means here.
        default_token_budget: what `--max-num-batched-tokens` is when not given.
        memory_bound_tokens: what `--memory-bound-tokens` is when not given.
        providers: op providers in order of preference; "torch" is last.
    """

    name: str
    device: str
    default_dtype: DType
    default_token_budget: int
    memory_bound_tokens: int
    providers: tuple[str, ...]

    @classmethod
    def unavailable(cls) -> str | None:
        """Why this platform cannot be used on this machine, or None if it can."""

    def free_bytes(self) -> int:
        """Bytes that can still be allocated on the device, container limits included."""

    def total_bytes(self) -> int:
        """Bytes of the device, or of the container if that is less."""

    def kv_bytes(self, utilization: float | None) -> int:
        """Bytes the KV pool may take now that the weights are loaded; see `CacheConfig.gpu_memory_utilization`."""

    def set_threads(self, threads: int | None) -> int:
        """Use this many CPU threads (None: all this process may use). Returns the number in use."""

    def synchronize(self) -> None:
        """Wait until all work given to the device is done."""

    def describe(self) -> str:
        """The device in one line, for people."""


def share_bytes(utilization: float, total_bytes: int, free_bytes: int) -> int:
    """What is left of `utilization` of the device after everything that is in use already, at least 0."""
    return max(0, free_bytes - round((1.0 - utilization) * total_bytes))
