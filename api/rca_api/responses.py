"""How problem answers are declared in the OpenAPI document."""

from __future__ import annotations

from typing import Any

from rca_api.problems import CATALOGUE, MEDIA_TYPE


def problem_responses(*codes: str) -> dict[int | str, dict[str, Any]]:
    """One OpenAPI response per status that `codes` can have, `internal-error` included."""
    declared: dict[int | str, dict[str, Any]] = {}
    for status in sorted({CATALOGUE[code].status for code in (*codes, "internal-error")}):
        held = [code for code in (*codes, "internal-error") if CATALOGUE[code].status == status]
        told = "; ".join(f"`{code}`: {CATALOGUE[code].title}" for code in held)
        declared[status] = {
            "description": told,
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        if status == 503:
            declared[status]["headers"] = {
                "Retry-After": {
                    "description": "Seconds to wait.",
                    "schema": {"type": "integer", "minimum": 1},
                }
            }
    return declared
