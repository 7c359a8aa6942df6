"""NVIDIA GPUs as a platform. One process drives one GPU: the first that CUDA_VISIBLE_DEVICES leaves visible."""

from pathlib import Path

from octavo.config import DType
from octavo.platforms import host
from octavo.platforms.interface import share_bytes

DEFAULT_UTILIZATION = 0.9
FIRST_CAPABILITY_WITH_BFLOAT16 = (8, 0)

DRIVER_FILES = (Path("/dev/nvidiactl"), Path("/proc/driver/nvidia"), Path("/dev/dxg"))
"""At least one is there where a driver is (the last one under WSL); looking is cheap, importing torch is not."""


class CudaPlatform:
    """See `Platform`."""

    name = "cuda"
    default_token_budget = 8192
    memory_bound_tokens = 256
    providers: tuple[str, ...] = ("triton", "torch")

    def __init__(self) -> None:
        import torch  # noqa: PLC0415  a machine without a driver never gets here

        self.device = "cuda:0"
        self._torch = torch
        capability = torch.cuda.get_device_capability(self.device)
        self.default_dtype: DType = "bfloat16" if capability >= FIRST_CAPABILITY_WITH_BFLOAT16 else "float16"

    @classmethod
    def unavailable(cls) -> str | None:
        if not any(map(Path.exists, DRIVER_FILES)):
            return "there is no NVIDIA driver; install one"
        import torch  # noqa: PLC0415  see above

        if torch.version.cuda is None:
            return "this build of torch has no CUDA; install one that has"
        if not torch.cuda.is_available():
            return "torch finds no GPU; check the driver and CUDA_VISIBLE_DEVICES"
        return None

    def free_bytes(self) -> int:
        self._torch.cuda.empty_cache()  # what torch caches is ours to use again, but CUDA counts it as taken
        return self._torch.cuda.mem_get_info(self.device)[0]

    def total_bytes(self) -> int:
        return self._torch.cuda.mem_get_info(self.device)[1]

    def kv_bytes(self, utilization: float | None) -> int:
        return share_bytes(utilization or DEFAULT_UTILIZATION, self.total_bytes(), self.free_bytes())

    def set_threads(self, threads: int | None) -> int:
        """The GPU computes; the CPU only feeds it, for which few threads do best."""
        count = threads or min(4, host.usable_cpus())
        self._torch.set_num_threads(count)
        return count

    def synchronize(self) -> None:
        self._torch.cuda.synchronize(self.device)

    def describe(self) -> str:
        gib = self.free_bytes() / 2**30
        return f"{self._torch.cuda.get_device_name(self.device)}, CUDA {self._torch.version.cuda}, {gib:.1f} GiB free"
