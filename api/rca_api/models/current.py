"""Which bundle answers at the moment."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class BundleRef:
    """A bundle on the local disk, as pool processes are told to use it.

    Attributes
    ----------
    folder : Path or None
        None for the bundle that is shipped with the package.
    sha256 : str
        Of its manifest; "" until it was loaded once.
    """

    folder: Path | None
    sha256: str = ""


@dataclass
class CurrentModels:
    """Which bundles are in use; replacing one is a single assignment, seen by the next request."""

    champion: BundleRef
