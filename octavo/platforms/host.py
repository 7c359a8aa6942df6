"""What the operating system grants this process: memory and CPUs, through cgroup v1 and v2. Reads files; no torch."""

import math
import os
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")

V2_NAMES = ("memory.max", "memory.current", "inactive_file")
V1_NAMES = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def total_bytes(root: Path = ROOT) -> int:
    """Bytes of memory of the machine, or the lowest limit of a cgroup around this process."""
    limits = [limit for limit, _ in _memory_cgroups(root)]
    return min([_meminfo(root)["MemTotal"], *limits])


def free_bytes(root: Path = ROOT) -> int:
    """Bytes this process can still take before the machine, or a cgroup around it, runs out."""
    left = [max(0, limit - used) for limit, used in _memory_cgroups(root)]
    return min([_meminfo(root)["MemAvailable"], *left])


def usable_cpus(root: Path = ROOT) -> int:
    """CPUs this process may use: its affinity, and the cgroup quota rounded up."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([cpus, *(math.ceil(quota) for quota in _cpu_quotas(root))]))


def cpu_flags(root: Path = ROOT) -> frozenset[str]:
    """Instruction set flags of the first CPU, as Linux names them; empty where there is no /proc/cpuinfo."""
    return frozenset(_cpuinfo(root).get("flags", "").split())


def last_level_cache_bytes(root: Path = ROOT) -> int:
    """Size of the largest cache of the first CPU; 0 where Linux does not tell."""
    sizes = [_read(path) for path in (root / "sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    return max((int(size.removesuffix("K")) * 1024 for size in sizes if size), default=0)


def cpu_name(root: Path = ROOT) -> str:
    """The CPU's own name."""
    return _cpuinfo(root).get("model name", "CPU")


def _meminfo(root: Path) -> dict[str, int]:
    text = _read(root / "proc/meminfo")
    if text is None:  # not Linux
        size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return {"MemTotal": size, "MemAvailable": size}
    fields = (line.split() for line in text.splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in fields if len(words) == 3}


def _cpuinfo(root: Path) -> dict[str, str]:
    first = (_read(root / "proc/cpuinfo") or "").partition("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _memory_cgroups(root: Path) -> Iterator[tuple[int, int]]:
    """(limit, bytes in use that cannot be reclaimed at once) of every limited cgroup around this process."""
    for controller, (limit_name, usage_name, cache_name) in (("", V2_NAMES), ("memory", V1_NAMES)):
        for folder in _cgroup_folders(root, controller):
            limit, usage = _read(folder / limit_name), _read(folder / usage_name)
            if limit is None or usage is None or limit == "max":
                continue
            stat = dict(line.split() for line in (_read(folder / "memory.stat") or "").splitlines())
            yield int(limit), int(usage) - int(stat.get(cache_name, 0))


def _cpu_quotas(root: Path) -> Iterator[float]:
    """CPUs granted by every cgroup with a quota around this process."""
    for folder in _cgroup_folders(root, ""):
        quota, _, period = (_read(folder / "cpu.max") or "max").partition(" ")
        if quota != "max":
            yield int(quota) / int(period)
    for folder in _cgroup_folders(root, "cpu"):
        quota, period = _read(folder / "cpu.cfs_quota_us") or "-1", _read(folder / "cpu.cfs_period_us") or "100000"
        if int(quota) > 0:
            yield int(quota) / int(period)


def _cgroup_folders(root: Path, controller: str) -> Iterator[Path]:
    """This process's cgroup and those above it; `controller` is "" for version 2.

    Inside a container the path may be the host's: then only the folders that exist here, up to the mount, count.
    """
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / (controllers if controller else "")
        folder = mount / path.lstrip("/")
        yield from (f for f in (folder, *folder.parents) if f == mount or mount in f.parents)


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
