"""The operation on meshes of devices."""

import subprocess
import sys
from pathlib import Path


def test_divided_over_eight_devices_it_computes_the_same():
    root = Path(__file__).parent.parent.parent
    program = [sys.executable, "-m", "tests.core.on_eight_devices"]
    found = subprocess.run(program, cwd=root, capture_output=True, text=True, timeout=300)
    assert found.returncode == 0 and found.stdout.endswith("done\n"), found.stderr[-3000:]
