import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("setup", "level", "expected"),
    [
        ("", "INFO", "engine.core] shown"),
        ("", "ERROR", ""),
        ("import logging; logging.basicConfig(format='theirs: %(message)s'); ", "INFO", "theirs: shown"),
    ],
)
def test_a_line_appears_once_in_our_form_or_in_the_applications(setup, level, expected):
    code = f"{setup}from octavo.logging import get_logger; get_logger('octavo.engine.core').info('shown')"
    env = os.environ | {"OCTAVO_LOG_LEVEL": level, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "" and done.stderr.strip().endswith(expected)
    assert len(done.stderr.splitlines()) == (1 if expected else 0)
