"""Root-cause analysis for slow and stopped distributed training jobs.

>>> import rca
>>> window = rca.read_window("data/windows/cpu-contention-node")
>>> diagnosis = rca.diagnose(window)
>>> diagnosis.failure_mode
'fail_slow'
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rca.causal.ranking import rank_causes
    from rca.diagnosis import Bundle, Diagnosis, diagnose
    from rca.diagnosis.planning import plan
    from rca.errors import (
        BundleError,
        InvalidInput,
        InvalidTrace,
        InvalidWindow,
        MissingExtra,
        RcaError,
        SourceError,
        TooLarge,
    )
    from rca.recovery.planner import Plan
    from rca.recovery.site import Site
    from rca.sources.prometheus import read_prometheus
    from rca.sources.read import read_window
    from rca.whatif import WhatIf, what_if
    from rca.window import Window

__all__ = [
    "Bundle",
    "BundleError",
    "Diagnosis",
    "InvalidInput",
    "InvalidTrace",
    "InvalidWindow",
    "MissingExtra",
    "Plan",
    "RcaError",
    "Site",
    "SourceError",
    "TooLarge",
    "WhatIf",
    "Window",
    "diagnose",
    "plan",
    "rank_causes",
    "read_prometheus",
    "read_window",
    "what_if",
]

# Imported when first used: `rca what-if` must not wait for the diagnosis, nor `rca --help` for anything.
_HOMES = {
    "rca.causal.ranking": ("rank_causes",),
    "rca.diagnosis": ("Bundle", "Diagnosis", "diagnose"),
    "rca.diagnosis.planning": ("plan",),
    "rca.recovery.planner": ("Plan",),
    "rca.recovery.site": ("Site",),
    "rca.sources.read": ("read_window",),
    "rca.window": ("Window",),
    "rca.sources.prometheus": ("read_prometheus",),
    "rca.whatif": ("WhatIf", "what_if"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'rca' has no attribute {name!r}")
    value: object = getattr(import_module(_HOME_OF.get(name, "rca.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
