"""Services that follow a registry, without HTTP and without processes, and the registry they follow."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import orjson

import rca
from rca.diagnosis.result import Diagnosis
from rca.window.window import Window
from rca_api.models.bundle_cache import BundleCache
from rca_api.models.bundle_trial import Diagnose
from rca_api.models.current import CurrentModels
from rca_api.models.follower import Follower, RetryPolicy
from rca_api.shell.observability.metrics import Metrics
from rca_api.shell.processes.bundles import BundleRef
from rca_api.shell.settings.settings import Settings

SHIPPED = Path(str(files("rca_models"))) / "baseline"


@lru_cache(maxsize=4)
def loaded(folder: Path) -> rca.Bundle:
    return rca.Bundle.load(folder)


def diagnose_here(ref: BundleRef, window: Window | str) -> Diagnosis:
    """What the pool does, in this process."""
    assert isinstance(window, Window)
    return rca.diagnose(window, bundle=None if ref.folder is None else loaded(ref.folder))


class FakeRegistry:
    """Aliases, and bundles by version."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.aliases_of: dict[str, int] = {}
        self.bundles: dict[int, tuple[Path, str]] = {}
        self.away: Exception | None = None
        self.fetched: list[int] = []
        #: Raised by `fetch`, by version.
        self.unreadable: dict[int, Exception] = {}
        self.asked = "at first"

    def add(self, number: int, **thresholds: float) -> str:
        """A copy of the shipped bundle with a name of its own, and other thresholds; its digest."""
        folder = self.folder / str(number)
        shutil.copytree(SHIPPED, folder)
        heads = orjson.loads((folder / "heads.json").read_bytes())
        heads["thresholds"] |= thresholds
        (folder / "heads.json").write_bytes(orjson.dumps(heads))
        manifest = orjson.loads((folder / "manifest.json").read_bytes())
        manifest["version"] = str(number)
        manifest["files"]["heads.json"] = hashlib.sha256((folder / "heads.json").read_bytes()).hexdigest()
        (folder / "manifest.json").write_bytes(orjson.dumps(manifest))
        digest = hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
        self.bundles[number] = (folder, digest)
        return digest

    def aliases(self) -> dict[str, dict[str, Any]]:
        if self.away is not None:
            raise self.away
        return {
            alias: {"version": number, "sha256": self.bundles[number][1], "asked": self.asked}
            for alias, number in self.aliases_of.items()
        }

    def fetch(self, number: int, output: Path) -> None:
        self.fetched.append(number)
        if number in self.unreadable:
            raise self.unreadable[number]
        shutil.copytree(self.bundles[number][0], output)

    def rest(self) -> None:
        pass


class Service:
    """As much of the service as follows a registry."""

    def __init__(
        self,
        folder: Path,
        registry: Any,
        healthy: Window,
        diagnose: Diagnose = diagnose_here,
        keep_seconds: float = 3600.0,
        **options: Any,
    ) -> None:
        settings = Settings(data_dir=folder, tracking_uri="http://registry", shadow_share=0.5)
        self.current = CurrentModels(BundleRef(None))
        self.metrics = Metrics()
        self.folder = folder / "models"
        self.moment = 0.0
        self.trials = 0

        def trial() -> AbstractContextManager[Diagnose]:
            self.trials += 1
            return nullcontext(diagnose)

        self.follower = Follower(
            settings,
            self.current,
            registry,
            self.metrics,
            cache=BundleCache(self.folder, keep_seconds),
            trial=trial,
            healthy=lambda: healthy,
            retries=RetryPolicy(lambda: self.moment),
            **options,
        )

    def trials_that(self, outcome: str) -> float:
        labels = {"outcome": outcome}
        return self.metrics.registry.get_sample_value("rca_model_trials_total", labels) or 0.0

    @property
    def answers(self) -> int | None:
        return self.current.champion.version

    def count(self, name: str) -> float:
        return self.metrics.registry.get_sample_value(name) or 0.0


Serve = Callable[..., Service]


def serving_from(folder: Path, registry: FakeRegistry, make_window: Any) -> Serve:
    """What makes services on one folder, as replicas or one after the other."""
    healthy = make_window(n_ranks=4, n_steps=20)
    return lambda **options: Service(folder, registry, healthy, **options)


def followed(service: Service, registry: FakeRegistry, *numbers: int) -> None:
    for number in numbers:
        registry.aliases_of = {"champion": number}
        service.follower.poll()


def damage(folder: Path) -> None:
    (folder / "cause.txt.gz").write_text("tree")
