"""All tables of the service: importing this module fills ``Base.metadata``."""

from __future__ import annotations

from rca_api.actions import tables as actions
from rca_api.data_shards import tables as data_shards
from rca_api.diagnoses import tables as diagnoses
from rca_api.feedback import tables as feedback
from rca_api.incidents import tables as incidents
from rca_api.jobs import tables as jobs
from rca_api.models import shadow_comparison as models
from rca_api.nodes import repository as nodes
from rca_api.shell.security import keys as security
from rca_api.shell.store.base import Base
from rca_api.training_runs import tables as training_runs
from rca_api.webhooks import tables as webhooks

__all__ = [
    "Base",
    "actions",
    "data_shards",
    "diagnoses",
    "feedback",
    "incidents",
    "jobs",
    "models",
    "nodes",
    "security",
    "training_runs",
    "webhooks",
]
