"""All that the service remembers for the next diagnosis, as far as the settings let it."""

from __future__ import annotations

from rca_api.diagnoses.history import Remembered
from rca_api.diagnoses.history_cache import WindowMemory
from rca_api.nodes.history_cache import NodeMemory
from rca_api.settings import Settings
from rca_api.store.database import Database


class Memory:
    """Of nodes and of windows, each a setting; both have to be followed.

    Attributes
    ----------
    nodes : NodeMemory
    windows : WindowMemory
    """

    def __init__(self, database: Database, settings: Settings) -> None:
        used = settings.node_priors == "on"
        self.nodes = NodeMemory(database, settings.node_lemon_prior, used=used)
        self.windows = WindowMemory(database, used=settings.earlier_windows == "on")

    @property
    def current(self) -> Remembered:
        """What is known now."""
        return Remembered(self.nodes.current, self.windows.current)
