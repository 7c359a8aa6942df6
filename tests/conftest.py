"""Imported before any test: `octavo` says how OpenMP's threads wait, which they read when torch is first imported. Left
to spin, they take the processor from whatever else runs on a busy machine, and tests take many times as long.
"""

import octavo  # noqa: F401
