"""The platforms there are, and the choice of one."""

from octavo.errors import ConfigError
from octavo.platforms.interface import Platform
from octavo.registry import Registry

PLATFORMS: Registry[type[Platform]] = Registry(
    "device",
    {
        "cuda": "octavo.platforms.cuda:CudaPlatform",
        "cpu": "octavo.platforms.cpu:CpuPlatform",
    },
)
"""In the order in which "auto" tries them."""


def select_platform(device: str) -> Platform:
    """The platform called `device`; "auto" is the first that this machine has.

    Raises:
        ConfigError: there is no such platform, or it cannot be used here; the message says why.
    """
    if device == "auto":
        device = next(name for name in PLATFORMS if PLATFORMS.load(name).unavailable() is None)
    platform = PLATFORMS.load(device)
    reason = platform.unavailable()
    if reason is not None:
        raise ConfigError(f"--device {device} cannot be used: {reason}, or use --device cpu")
    return platform()
