"""How problem answers are declared in the OpenAPI document."""

from __future__ import annotations

from typing import Any

from rca_api.problems import CATALOGUE, MEDIA_TYPE

#: What can be answered wherever it matters who asks.
_BY_ACCESS = ("unauthenticated", "forbidden", "rate-limited", "store-unavailable", "issuer-unavailable")


def problem_responses(*codes: str, public: bool = False) -> dict[int | str, dict[str, Any]]:
    """One OpenAPI response per status that `codes` can have, or access unless `public`, or a failure."""
    possible = dict.fromkeys((*codes, *(() if public else _BY_ACCESS), "internal-error"))
    declared: dict[int | str, dict[str, Any]] = {}
    for status in sorted({CATALOGUE[code].status for code in possible}):
        held = [code for code in possible if CATALOGUE[code].status == status]
        told = "; ".join(f"`{code}`: {CATALOGUE[code].title}" for code in held)
        declared[status] = {
            "description": told,
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        if status in (429, 503):
            declared[status]["headers"] = {
                "Retry-After": {
                    "description": "Seconds to wait.",
                    "schema": {"type": "integer", "minimum": 1},
                }
            }
    return declared
