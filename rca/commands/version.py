"""`rca version`: what is installed, for a bug report."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from rca.terminal import write

EXAMPLES = "rca version"
_TELLING = ("numpy", "pyarrow", "pydantic", "lightgbm", "fastapi", "dowhy", "mlflow")


def command() -> None:
    """Print versions of this program, Python and the libraries that matter."""
    lines = [f"straggler-rca {version('straggler-rca')}", f"python {platform.python_version()}"]
    write("\n".join(lines + [f"{library} {_version(library)}" for library in _TELLING]))


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "not installed"
