"""What `rca.window` promises."""

from __future__ import annotations

import subprocess
import sys

import pytest

import rca.window

pytestmark = pytest.mark.system


def test_the_exported_names_exist_constants_first() -> None:
    names = rca.window.__all__
    assert names == sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    assert all(hasattr(rca.window, name) for name in names)


def test_reading_a_window_does_not_wait_for_pandas() -> None:
    script = "import sys, rca.window; sys.exit('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
