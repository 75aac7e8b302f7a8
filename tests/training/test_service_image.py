"""What the service's image installs is enough to follow, promote and roll back."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

pytest.importorskip("mlflow")

from registered import add_version, bundle_copy

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated"),
]
LOCK = Path(__file__).parents[2] / "api" / "deploy" / "service.lock"
#: All calls of the service to a registry, where only the packages of the image can be imported.
CALLS = """
import sys
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in sys.argv[2].split(","):
            raise ModuleNotFoundError(f"No module named {name!r} in the service's image", name=name)

sys.meta_path.insert(0, Missing())
from rca_api.models import registry_process as registry

uri, output = sys.argv[1], sys.argv[3]
assert registry.aliases(uri)["challenger"]["version"] == 1
assert [each["version"] for each in registry.versions(uri)] == [1]
assert registry.version(uri, "1") is not None
assert registry.card(uri, "1") == ""
registry.fetch(uri, "1", output)
assert registry.promote(uri, "1", "a test", "for it")["promoted"]
assert registry.retry(uri, "1")["version"] == 1
assert registry.rollback(uri, "no reason", 1)["from"] == 1
"""


def not_in_the_image() -> set[str]:
    """Top-level modules installed here whose packages the image does not have."""
    locked = set(re.findall(r"^([a-z0-9._-]+)==", LOCK.read_text(), re.MULTILINE)) | {"straggler-rca"}
    assert "fastapi" in locked
    return {
        module
        for module, packages in packages_distributions().items()
        if not {re.sub(r"[-_.]+", "-", name).lower() for name in packages} & locked
    }


@pytest.mark.long
def test_the_registry_is_asked_with_nothing_but_what_the_image_has(tmp_path: Path) -> None:
    missing = not_in_the_image()
    assert {"sklearn", "optuna", "pytest"} <= missing
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    add_version(uri, bundle_copy(tmp_path / "bundle", "first"))
    command = [sys.executable, "-c", CALLS, uri, ",".join(missing), str(tmp_path / "fetched")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "fetched" / "manifest.json").exists()
