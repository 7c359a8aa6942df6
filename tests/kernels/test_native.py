"""Finding and setting up the compiled kernels."""

import logging
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from octavo.errors import ConfigError
from octavo.kernels.cpu import native, rowwise
from octavo.ops.silu_mul import silu_mul


@pytest.fixture
def fresh_load(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """`native.load` without the memory of earlier calls, and with none of this test afterwards."""
    monkeypatch.setattr(native, "load", native.load.__wrapped__)
    return monkeypatch


def test_missing_kernels_are_named_once_and_the_reference_serves(
    fresh_load: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fresh_load.setattr(native, "_native", None)
    fresh_load.setattr(native, "_why_not", ImportError("no module named _native"))
    with caplog.at_level(logging.INFO, logger="octavo"):
        assert native.load() is None
    assert [record.message for record in caplog.records] == [
        "native CPU kernels are not installed (no module named _native); using plain torch"
    ]
    fresh_load.setattr(rowwise, "_native", None)
    x = torch.randn(3, 8)
    assert torch.equal(rowwise.silu_mul(x), silu_mul.reference(x))


def test_tier_comes_from_the_environment(fresh_load: pytest.MonkeyPatch, kernels: ModuleType, tier: str) -> None:
    fresh_load.setenv("OCTAVO_CPU_TIER", tier)
    assert native.load().tier() == tier
    fresh_load.delenv("OCTAVO_CPU_TIER")
    assert native.load().tier() == kernels.tiers()[-1]


def test_tier_of_tests_is_used_only_when_asked_for(fresh_load: pytest.MonkeyPatch, kernels: ModuleType) -> None:
    assert "amx_software" not in kernels.tiers()
    fresh_load.setenv("OCTAVO_CPU_TIER", "amx_software")
    assert native.load().tier() == "amx_software"


def test_log_names_the_tier_and_why_a_cpu_with_amx_goes_without(
    fresh_load: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kernels: ModuleType
) -> None:
    assert ("amx" in kernels.tiers()) <= (kernels.amx_refusal() == "")
    fresh_load.setattr(native, "_native", Refused(kernels))
    with caplog.at_level(logging.INFO, logger="octavo"):
        native.load()
    best = kernels.tiers()[-1]
    assert [record.message for record in caplog.records] == [
        f"CPU kernels: {best} (this CPU has AMX, but the operating system refused permission: No space left on device)"
    ]


class Refused:
    """The kernels on a CPU whose AMX this process may not use."""

    def __init__(self, kernels: ModuleType) -> None:
        self.tiers, self.tier, self.select_tier = kernels.tiers, kernels.tier, kernels.select_tier

    def amx_refusal(self) -> str:
        return "the operating system refused permission: No space left on device"


def test_unknown_tier_is_refused_with_the_known_ones(fresh_load: pytest.MonkeyPatch) -> None:
    fresh_load.setenv("OCTAVO_CPU_TIER", "avx1024")
    with pytest.raises(ConfigError, match=r"OCTAVO_CPU_TIER is 'avx1024' but this machine runs portable"):
        native.load()


def test_default_thread_count_is_the_cpus_this_process_may_use() -> None:
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    code += "from octavo.kernels.cpu import native; print(native.load().num_threads())"
    assert run_python(code) == "1"


def test_pool_works_in_a_forked_child_and_in_its_parent() -> None:
    code = """
import os, torch
from octavo.kernels.cpu import native, rowwise
native.set_num_threads(3)
x = torch.randn(512, 512)
want = rowwise.silu_mul(x)
child = os.fork()
if child == 0:
    os._exit(0 if torch.equal(rowwise.silu_mul(x), want) and native.load().num_threads() == 3 else 1)
status = os.waitpid(child, 0)[1]
print(status, torch.equal(rowwise.silu_mul(x), want))
"""
    assert run_python(code) == "0 True"


def test_callers_in_several_python_threads_share_the_pool() -> None:
    code = """
import threading, torch
from octavo.kernels.cpu import native, rowwise
native.set_num_threads(2)
x = torch.randn(256, 1024)
want, good = rowwise.silu_mul(x), []
def call():
    good.append(all(torch.equal(rowwise.silu_mul(x), want) for _ in range(50)))
callers = [threading.Thread(target=call) for _ in range(4)]
[caller.start() for caller in callers], [caller.join() for caller in callers]
print(good)
"""
    assert run_python(code) == "[True, True, True, True]"


def run_python(code: str) -> str:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=root,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout.strip()
