"""The CPU as a platform."""

from octavo.config import DType
from octavo.platforms import host
from octavo.platforms.interface import share_bytes

FAST_BFLOAT16 = {"avx512_bf16", "amx_bf16"}
MAX_DEFAULT_KV_BYTES = 4 << 30


class CpuPlatform:
    """See `Platform`. Native kernels come first if they are built, torch is what always works."""

    name = "cpu"
    default_token_budget = 1024
    memory_bound_tokens = 16
    providers: tuple[str, ...] = ("cpu", "torch")

    def __init__(self) -> None:
        self.device = "cpu"
        self.default_dtype: DType = "bfloat16" if host.cpu_flags() & FAST_BFLOAT16 else "float32"

    @classmethod
    def unavailable(cls) -> str | None:
        return None

    def free_bytes(self) -> int:
        return host.free_bytes()

    def total_bytes(self) -> int:
        return host.total_bytes()

    def kv_bytes(self, utilization: float | None) -> int:
        if utilization is None:
            return min(self.free_bytes() // 2, MAX_DEFAULT_KV_BYTES)
        return share_bytes(utilization, self.total_bytes(), self.free_bytes())

    def set_threads(self, threads: int | None) -> int:
        count = threads or host.usable_cpus()
        import torch  # noqa: PLC0415  only an engine process needs it

        torch.set_num_threads(count)
        return count

    def synchronize(self) -> None:
        """Nothing is ever pending."""

    def describe(self) -> str:
        return f"{host.cpu_name()}, {host.usable_cpus()} cores, {self.free_bytes() / 2**30:.1f} GiB free"
