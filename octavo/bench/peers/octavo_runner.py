"""Octavo as one of the peers, in the same loop. Run by its path, with an interpreter that has Octavo."""

from typing import Any

from runner import Loaded, serve_job

from octavo.bench.offline import OfflineBench
from octavo.engine.resolve import make_config
from octavo.version import VERSION


def load(job: dict[str, Any]) -> Loaded:
    """An engine in this process."""
    bench = OfflineBench(make_config(**job["options"]))
    return Loaded(VERSION, lambda items, users: bench.send(items, users=users))


if __name__ == "__main__":
    serve_job(load)
