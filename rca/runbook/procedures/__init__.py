"""Runbooks: what an on-call engineer does about a cause, with commands to copy.

Each cause has a file in ``files``. A folder of a site replaces files or single entries of ``common.yaml``.
"""

from rca.runbook.procedures.incident import DiagnosedCause
from rca.runbook.procedures.library import Library
from rca.runbook.procedures.runbook import Runbook, runbook

__all__ = ["DiagnosedCause", "Library", "Runbook", "runbook"]
