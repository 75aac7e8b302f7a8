"""The benchmarks are no part of the distribution, so only a checkout has them: make its root importable."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
