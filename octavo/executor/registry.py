"""The executors there are, by the value of `--distributed-executor-backend`."""

from octavo.executor.interface import Executor
from octavo.registry import Registry

EXECUTORS: Registry[type[Executor]] = Registry("executor", {"uni": "octavo.executor.uniproc:UniprocExecutor"})
