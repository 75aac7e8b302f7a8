"""Reading of stored diagnoses: documents of older formats are lifted, those of a later version refused."""

from __future__ import annotations

from pydantic import ValidationError

from rca.diagnosis.result import Diagnosis
from rca_api.shell.requests.problems import ProblemError


def read_stored(document: bytes) -> Diagnosis:
    """Read a stored document.

    Raises
    ------
    ProblemError
        ``conflict`` if a later version of the service wrote it.
    """
    try:
        return Diagnosis.model_validate_json(document)
    except ValidationError:
        raise ProblemError(
            "conflict",
            "the diagnosis was written by a later version of the service",
            hint="update this replica, or read the diagnosis as application/json",
        ) from None
