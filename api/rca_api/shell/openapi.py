"""``python -m rca_api.shell.openapi`` prints the OpenAPI 3.1 document of `api/openapi.json`."""

from __future__ import annotations

import json
import sys

from rca_api.shell.app import create_app


def text() -> str:
    """Format the document as the committed file has it."""
    return json.dumps(create_app().openapi(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
