"""What a platform says of its machine, on machines made of files."""

from pathlib import Path

import pytest
import torch

from octavo.errors import ConfigError
from octavo.platforms import host
from octavo.platforms.cpu import MAX_DEFAULT_KV_BYTES, CpuPlatform
from octavo.platforms.cuda import CudaPlatform
from octavo.platforms.interface import Platform, share_bytes
from octavo.platforms.registry import PLATFORMS, select_platform

GIB = 1 << 30


def machine(root: Path, cgroup: str = "0::/", **files: str) -> Path:
    """A file system of 16 GiB, 10 of them free, with further files by path ("/" is spelled "__")."""
    contents = {
        "proc__meminfo": f"MemTotal: {16 * GIB // 1024} kB\nMemAvailable: {10 * GIB // 1024} kB\nHugePages_Total: 0\n",
        "proc__self__cgroup": cgroup,
        "proc__cpuinfo": "processor\t: 0\nmodel name\t: Imagined CPU\nflags\t\t: avx2 avx512_bf16\n\nprocessor\t: 1\n",
        **files,
    }
    for name, text in contents.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def cgroup_v2(path: str, limit: str, used: int, reclaimable: int = 0) -> dict[str, str]:
    folder = f"sys__fs__cgroup__{path}" if path else "sys__fs__cgroup"
    return {
        f"{folder}__memory.max": limit,
        f"{folder}__memory.current": str(used),
        f"{folder}__memory.stat": f"anon 5\ninactive_file {reclaimable}",
    }


def test_without_limits_memory_is_that_of_the_machine(tmp_path: Path) -> None:
    root = machine(tmp_path, **cgroup_v2("", "max", 5 * GIB))
    assert (host.total_bytes(root), host.free_bytes(root)) == (16 * GIB, 10 * GIB)


def test_the_tightest_cgroup_above_the_process_counts_and_caches_are_free(tmp_path: Path) -> None:
    limits = cgroup_v2("a", str(4 * GIB), 3 * GIB, GIB) | cgroup_v2("a__b", str(6 * GIB), GIB)
    root = machine(tmp_path, "0::/a/b", **limits)
    assert (host.total_bytes(root), host.free_bytes(root)) == (4 * GIB, 2 * GIB)


def test_a_full_cgroup_leaves_nothing(tmp_path: Path) -> None:
    root = machine(tmp_path, **cgroup_v2("", str(2 * GIB), 3 * GIB))
    assert host.free_bytes(root) == 0


def test_limits_of_version_1_count_even_where_the_path_is_the_host_s(tmp_path: Path) -> None:
    folder = "sys__fs__cgroup__memory"
    root = machine(
        tmp_path,
        "7:memory:/docker/0123abc\n3:cpu,cpuacct:/docker/0123abc\n0::/",
        **{
            f"{folder}__memory.limit_in_bytes": str(3 * GIB),
            f"{folder}__memory.usage_in_bytes": str(2 * GIB),
            f"{folder}__memory.stat": f"total_inactive_file {GIB}",
            "sys__fs__cgroup__cpu,cpuacct__cpu.cfs_quota_us": "150000",
            "sys__fs__cgroup__cpu,cpuacct__cpu.cfs_period_us": "100000",
        },
    )
    assert (host.total_bytes(root), host.free_bytes(root)) == (3 * GIB, 2 * GIB)
    assert list(host._cpu_quotas(root)) == [1.5]


def test_cpus_are_those_of_the_affinity_and_no_more_than_the_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host.os, "sched_getaffinity", lambda pid: set(range(6)), raising=False)
    assert host.usable_cpus(machine(tmp_path / "free", **{"sys__fs__cgroup__cpu.max": "max 100000"})) == 6
    assert host.usable_cpus(machine(tmp_path / "some", **{"sys__fs__cgroup__cpu.max": "250000 100000"})) == 3
    assert host.usable_cpus(machine(tmp_path / "bit", **{"sys__fs__cgroup__cpu.max": "10000 100000"})) == 1
    assert host.usable_cpus(machine(tmp_path / "much", **{"sys__fs__cgroup__cpu.max": "900000 100000"})) == 6


def test_a_machine_without_proc_still_has_memory_and_cpus(tmp_path: Path) -> None:
    assert host.total_bytes(tmp_path) > 0 and host.free_bytes(tmp_path) > 0 and host.usable_cpus(tmp_path) >= 1
    assert host.cpu_flags(tmp_path) == frozenset() and host.cpu_name(tmp_path) == "CPU"


def test_cpu_computes_in_bfloat16_only_where_that_is_fast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = machine(tmp_path)
    assert host.cpu_name(root) == "Imagined CPU"
    for flags, dtype in (
        (host.cpu_flags(root), "bfloat16"),
        (frozenset({"amx_bf16"}), "bfloat16"),
        (frozenset({"avx2", "avx512f"}), "float32"),
    ):
        monkeypatch.setattr(host, "cpu_flags", lambda flags=flags: flags)
        assert CpuPlatform().default_dtype == dtype


def test_kv_pool_of_a_cpu_is_half_of_what_is_free_and_4_gib_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    platform = CpuPlatform()
    monkeypatch.setattr(host, "total_bytes", lambda: 16 * GIB)
    for free, default, share in (
        (6 * GIB, 3 * GIB, 2 * GIB),
        (12 * GIB, MAX_DEFAULT_KV_BYTES, 8 * GIB),
        (GIB, GIB // 2, 0),
    ):
        monkeypatch.setattr(host, "free_bytes", lambda free=free: free)
        assert platform.kv_bytes(None) == default
        assert platform.kv_bytes(0.75) == share


def test_a_share_counts_what_is_in_use_already() -> None:
    assert share_bytes(0.9, 100, 80) == 70
    assert share_bytes(1.0, 100, 80) == 80
    assert share_bytes(0.1, 100, 80) == 0


def test_threads_are_set_and_counted() -> None:
    before = torch.get_num_threads()
    try:
        assert CpuPlatform().set_threads(1) == torch.get_num_threads() == 1
        assert CpuPlatform().set_threads(None) == host.usable_cpus()
    finally:
        torch.set_num_threads(before)


def test_cpu_describes_itself_and_needs_no_waiting() -> None:
    platform = CpuPlatform()
    platform.synchronize()
    assert "cores" in platform.describe() and "GiB free" in platform.describe()
    assert platform.providers == ("cpu", "torch") and platform.device == "cpu"


def test_auto_takes_a_gpu_if_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CudaPlatform, "unavailable", classmethod(lambda cls: "no GPU"))
    assert select_platform("auto").name == "cpu"
    monkeypatch.setattr(CudaPlatform, "unavailable", classmethod(lambda cls: None))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    found = select_platform("auto")
    assert (found.name, found.default_dtype, found.device) == ("cuda", "bfloat16", "cuda:0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert select_platform("cuda").default_dtype == "float16"


def test_kv_pool_of_a_gpu_is_what_nine_tenths_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (60 * GIB, 80 * GIB))
    platform = CudaPlatform()
    assert (platform.kv_bytes(None), platform.kv_bytes(0.5)) == (52 * GIB, 20 * GIB)


def test_a_device_that_is_not_there_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CudaPlatform, "unavailable", classmethod(lambda cls: "torch finds no GPU"))
    with pytest.raises(ConfigError, match=r"--device cuda cannot be used: torch finds no GPU.*--device cpu"):
        select_platform("cuda")
    with pytest.raises(ConfigError, match="unknown device 'tpu'"):
        select_platform("tpu")


def test_every_platform_has_what_the_interface_asks_and_at_most_12_methods() -> None:
    methods = [name for name in vars(Platform) if not name.startswith("_")]
    assert len(methods) <= 12
    for name in PLATFORMS:
        platform = PLATFORMS.load(name)
        assert all(callable(getattr(platform, method)) for method in methods)
        assert platform.name == name and platform.providers[-1] == "torch"
