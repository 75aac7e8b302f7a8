"""The service's OpenAPI 3.1 document; ``python -m rca_api.openapi`` prints what `api/openapi.json` holds."""

from __future__ import annotations

import json
import sys
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from rca_api.diagnoses.schemas import ArrowWindow, TelemetryWindow, WindowBatch
from rca_api.problems import Problem
from rca_api.what_if.schemas import AskedScenarios, TraceWithScenarios

_REFERENCE = "#/components/schemas/{model}"


def document(app: FastAPI) -> dict[str, Any]:
    """Build the document once: FastAPI's own, and the schemas of bodies FastAPI does not parse."""
    if app.openapi_schema is None:
        built = get_openapi(
            title=app.title,
            summary=app.summary,
            version=app.version,
            openapi_version="3.1.0",
            routes=app.routes,
            webhooks=app.webhooks.routes,
            tags=app.openapi_tags,
            license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        )
        _, added = models_json_schema(
            [
                (TelemetryWindow, "validation"),
                (ArrowWindow, "validation"),
                (WindowBatch, "validation"),
                (AskedScenarios, "validation"),
                (TraceWithScenarios, "validation"),
                (Problem, "serialization"),
            ],
            ref_template=_REFERENCE,
        )
        schemas = built.setdefault("components", {}).setdefault("schemas", {})
        schemas |= added["$defs"]
        built["components"]["schemas"] = dict(sorted(schemas.items()))
        app.openapi_schema = built
    return app.openapi_schema


def text() -> str:
    """Format the document as the committed file has it."""
    from rca_api.app import create_app

    return json.dumps(create_app().openapi(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
