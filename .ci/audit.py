"""Compare what is installed with the advisory database; `make audit`.

Fails for a known vulnerability. A network that does not reach the database is said and let pass: it is no
property of the change.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

OPTIONS = "--format json --progress-spinner off --timeout 10 -r requirements.lock --no-deps --disable-pip"
command = [sys.executable, "-m", "pip_audit", *OPTIONS.split()]
ran = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=Path(__file__).parents[1])
try:
    found = json.loads(ran.stdout)["dependencies"]
except (ValueError, KeyError):
    print(
        "not audited: the advisory database cannot be reached:", (ran.stderr.strip().splitlines() or [""])[-1]
    )
    sys.exit(0)
audited = [each for each in found if "vulns" in each]
print(f"{len(audited)} of {len(found)} packages could be looked up")
holes = [(each["name"], each["version"], hole) for each in audited for hole in each["vulns"]]
for name, version, hole in holes:
    print(f"{name} {version}: {hole['id']}, mended in {', '.join(hole['fix_versions']) or 'no version'}")
sys.exit(bool(holes))
