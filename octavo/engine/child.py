"""The engine's process as its parent holds it. Imports the standard library only: who will need an engine starts the
process before its own imports, and both import side by side.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile

CLOSE_TIMEOUT_S = 5.0
"""How long an engine process may take to leave after its standard input has ended."""


class EngineChild:
    """A process that imports what it needs and then waits to be told its configuration.

    Attributes:
        folder: private to this user and new for each child; the two sockets are in it.
        process: runs `octavo.engine.core_process`.
    """

    def __init__(self, folder: str | None = None) -> None:
        self.folder = private_folder() if folder is None else folder
        # A new interpreter rather than a fork: no threads, locks or open files of the server come along, and user
        # scripts need no `if __name__ == "__main__"`. What it prints goes to our stderr, since stdout may be data.
        self.process = subprocess.Popen(
            [sys.executable, "-m", "octavo.engine.core_process", self.folder],
            stdin=subprocess.PIPE,
            stdout=2,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self._configured = False

    def configure(self, config: bytes) -> None:
        """Send the encoded configuration, once; the process then connects to the sockets and loads the model."""
        assert self.process.stdin is not None
        self._configured = True
        with contextlib.suppress(BrokenPipeError):  # ended already: whoever watches it reports that
            self.process.stdin.write(len(config).to_bytes(8, "little") + config)
            self.process.stdin.flush()

    def kill(self) -> None:
        """End the process now, even a stopped one; `close` tidies up."""
        self.process.kill()

    def close(self) -> None:
        """End the process and remove its folder. May be called twice."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()  # the process leaves when this ends
        if not self._configured:  # it may be importing still, and there is nothing to lose
            self.process.kill()
        try:
            self.process.wait(CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def private_folder() -> str:
    """A new folder for the sockets of one engine, so that any number of engines share a host."""
    return tempfile.mkdtemp(prefix="octavo-")
