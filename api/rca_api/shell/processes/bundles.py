"""The bundles that a process of the pool has loaded: the last few that its tasks used."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

import rca
from rca.classify.operator_inputs import read_priors
from rca.classify.uncertainty import AnswerShares
from rca.diagnosis.bundle import baseline
from rca.diagnosis.result import Diagnosis, ModelVersion
from rca.errors import BundleError
from rca.recovery.site import Site
from rca.window.window import Window

#: Champion, challenger and previous champion, so that a swap loads no bundle twice.
MAX_LOADED = 3


@dataclass(frozen=True)
class BundleRef:
    """A bundle on the local disk.

    Attributes
    ----------
    folder : Path or None
        None for the bundle that is shipped with the package.
    sha256 : str
        SHA-256 of its manifest; "" until it is loaded.
    version : int or None
        Its number in the registry, if it came from there.
    """

    folder: Path | None
    sha256: str = ""
    version: int | None = None


class LoadedBundles:
    """Diagnoses windows with the bundle a task names.

    Parameters
    ----------
    priors : Path, optional
        JSON file of how often each slow cause occurs on this cluster.
    site : Path, optional
        YAML file with costs and limits of recovery.
    """

    def __init__(self, priors: Path | None = None, site: Path | None = None) -> None:
        self._priors_file = priors
        self._site_file = site
        self._site: Site | None = None
        self._priors: dict[str, float] | None = None
        self._held: OrderedDict[BundleRef, rca.Bundle] = OrderedDict()

    def diagnose(
        self,
        ref: BundleRef,
        window: Window,
        node_odds: Mapping[str, float] | None = None,
        earlier: Window | None = None,
        corrections: Mapping[str, float] | None = None,
    ) -> Diagnosis:
        """Diagnose one validated window, with the fault odds of its nodes and with an earlier window.

        Gains of actions are multiplied by `corrections` where the site has none.

        Raises
        ------
        RcaError
            As `prepare` does.
        """
        bundle = self.prepare(ref)
        # Tasks have checked the memory before they stored the window.
        return rca.diagnose(
            window,
            bundle=bundle,
            priors=self._priors,
            node_odds=node_odds or None,
            earlier=earlier,
            site=(self._site or Site()).corrected(corrections or {}),
            max_memory_bytes=None,
        )

    def usual_answers(self, sha256: str) -> AnswerShares | None:
        """Shares of the answers of a loaded bundle to held-out windows; None if the bundle has none."""
        found = [held for held in self._held.values() if held.model.sha256 == sha256]
        return found[0].classifier.doubt.answers if found else None

    def warm(self, ref: BundleRef) -> ModelVersion:
        """Load a bundle and run one diagnosis, so that no request waits for imports and compilation.

        Raises
        ------
        RcaError
            If the bundle, the priors or the site cannot be used.
        """
        return self.diagnose(ref, small_window()).model

    def prepare(self, ref: BundleRef) -> rca.Bundle:
        """Load a bundle, the priors and the site, unless they are loaded.

        Raises
        ------
        RcaError
            If the bundle, the priors or the site cannot be used. The reason is for operators only.
        """
        if self._priors is None and self._priors_file is not None:
            self._priors = read_priors(self._priors_file)
        if self._site is None and self._site_file is not None:
            self._site = Site.read(self._site_file)
        held = self._held.get(ref)
        if held is None:
            held = baseline() if ref.folder is None else rca.Bundle.load(ref.folder)
            if ref.sha256 not in ("", held.model.sha256):
                raise BundleError(f"the bundle in {ref.folder} is not {ref.sha256}: its files were replaced")
            # Two versions with the same files share a folder.
            held = held if ref.version is None else held.registered_as(ref.version)
            self._held[ref] = held
            if len(self._held) > MAX_LOADED:
                self._held.popitem(last=False)
        self._held.move_to_end(ref)
        return held


def small_window(n_ranks: int = 4, n_steps: int = 8) -> Window:
    """Build a healthy window just large enough for every stage of a diagnosis."""
    rank, step = (axis.ravel() for axis in np.indices((n_ranks, n_steps)))
    steps = pa.table(
        {
            "rank": pa.array(rank, pa.int32()),
            "step": pa.array(step, pa.int64()),
            "start_time": 1.7e9 + 0.1 * step,
            "forward_seconds": np.full(rank.size, 0.03),
            "backward_seconds": np.full(rank.size, 0.06),
            "communication_wait_seconds": np.full(rank.size, 0.001),
            "step_seconds": np.full(rank.size, 0.1),
        }
    )
    metrics = pa.table(
        {
            "time": 1.7e9 + 0.1 * step,
            "node": pa.array(["warm-up"] * rank.size),
            "rank": pa.array(rank, pa.int32()),
            "device": pa.nulls(rank.size, pa.string()),
            "name": pa.array(["DCGM_FI_DEV_SM_CLOCK"] * rank.size),
            "value": np.full(rank.size, 1410.0),
        }
    )
    job: dict[str, object] = {
        "format": 1,
        "job_id": "warm-up",
        "world_size": n_ranks,
        "start": 1.7e9,
        "end": 1.7e9 + 0.1 * n_steps,
    }
    return Window.from_tables(job, steps, metrics)
