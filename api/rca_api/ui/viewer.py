"""`/docs`: a viewer of the OpenAPI document that needs no Internet access."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles

from rca_api.shell.requests.problems import ProblemError

PATH = "/docs"
#: Package that distributes the files of Swagger UI; its code is not used.
_PACKAGE = "fastapi_offline"
# All scripts are files, so that the policy in `middleware` can forbid scripts in the page.
_PAGE = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>straggler-rca</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="{PATH}/files/swagger-ui.css">
</head>
<body>
<div id="viewer"></div>
<script src="{PATH}/files/swagger-ui-bundle.js"></script>
<script src="{PATH}/start.js"></script>
</body>
</html>
"""
_START = """SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#viewer",
  deepLinking: true,
  validatorUrl: null,
});
"""


def install(app: FastAPI) -> None:
    """Add the page, its script and the files of the viewer; they are not part of the API."""
    files = _files()
    app.add_route(PATH, _page if files is not None else _absent, include_in_schema=False)
    if files is not None:
        app.add_route(f"{PATH}/start.js", _start, include_in_schema=False)
        app.mount(f"{PATH}/files", StaticFiles(directory=files))


def _page(_: Request) -> Response:
    return HTMLResponse(_PAGE)


def _start(_: Request) -> Response:
    return Response(_START, media_type="text/javascript")


def _absent(_: Request) -> Response:
    raise ProblemError(
        "missing-extra",
        "The viewer is not installed; the document is at /openapi.json.",
        hint=f"pip install {_PACKAGE.replace('_', '-')}",
    )


def _files() -> Path | None:
    """Folder of the viewer's files; their package is not imported."""
    found = find_spec(_PACKAGE)
    if found is None or found.origin is None:
        return None
    return Path(found.origin).parent / "static"
