"""Every case runs in jax.shard_map, with its default check, and on a mesh of explicit axes (jax.set_mesh)."""

import json
import os
import subprocess
import sys
from pathlib import Path

from ..cases import CASES
from ..inputs import B

ROOT = Path(__file__).parents[2]


def test_every_case_can_be_split_over_devices():
    command = [sys.executable, "-m", "tests.laws.sharding"]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["devices"] == B and found["cases"] == len(CASES)
    assert not found["failures"], "\n".join(found["failures"])
