"""A Robusta action: diagnose the training job of an alert, and add who, why and what to do to its message.

The service reads the window from Prometheus (`RCA_SOURCES`). The key needs the scope `diagnose`.
Beside Robusta only the standard library is used, so the runner needs no further package.
"""

# Robusta reads the annotations of actions when they run, so they must not become strings.
import json
import re
from html import escape
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from robusta.api import ActionParams, MarkdownBlock, PrometheusKubernetesAlert, action

#: What reading an answer raises that is cut off, or that another program wrote.
UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, HTTPException)


class DiagnoseParams(ActionParams):
    """Where the service is.

    :var url: address of the service
    :var api_key: key of the service, with the scope diagnose
    :var timeout_seconds: longest wait for one answer
    """

    url: str
    api_key: str
    timeout_seconds: int = 90


@action
def diagnose_training_job(alert: PrometheusKubernetesAlert, params: DiagnoseParams) -> None:
    """Diagnose the training job that the alert names by a label such as job_id."""
    fired = alert.alert
    message = {
        "version": "4",
        "status": fired.status,
        "alerts": [
            {
                "status": fired.status,
                "labels": fired.labels,
                "startsAt": fired.startsAt.isoformat(),
                "fingerprint": fired.fingerprint or "",
            }
        ],
    }
    try:
        (answer,) = json.loads(_asked(params, "/v1/hooks/alertmanager", message))["items"]
        text = _summary(params, answer) if answer["state"] == "diagnosed" else _no_diagnosis(answer)
    except UNREADABLE as error:
        text = _no_diagnosis(_failed(params, error))
    alert.add_enrichment([MarkdownBlock(text)])


class _NoRedirect(HTTPRedirectHandler):
    """Refuses redirects: the next request would carry the key to another server."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _asked(params: DiagnoseParams, path: str, body: Any | None = None) -> bytes:
    headers = {
        # A key from a file often ends with a newline.
        "Authorization": f"Bearer {params.api_key.strip()}",
        "Content-Type": "application/json",
        "Accept": "application/json" if body else "text/markdown",
    }
    content = json.dumps(body).encode() if body else None
    request = Request(params.url.rstrip("/") + path, content, headers)  # noqa: S310  (an address of the site)
    with build_opener(_NoRedirect).open(request, timeout=params.timeout_seconds) as response:
        found: bytes = response.read()
    return found


def _summary(params: DiagnoseParams, answer: dict[str, Any]) -> str:
    """The head of the answer, in the markup of Slack that Robusta uses for all its sinks."""
    page = _asked(params, f"/v1/diagnoses/{answer['diagnosis_id']}").decode()
    # Names of jobs and nodes must not become mentions.
    head = escape(page.split("\n## ")[0], quote=False)
    title, _, rest = head.partition("\n")
    text = f"*{title.removeprefix('# ')}*\n{rest.replace('**', '*').strip()}"
    return f"{text}\n<{answer['url']}|Incident>" if answer["url"] else text


def _no_diagnosis(answer: dict[str, Any]) -> str:
    said = ". ".join(str(answer[name]) for name in ("detail", "hint") if answer.get(name))
    return f"*No diagnosis:* {escape(said, quote=False)}"


def _failed(params: DiagnoseParams, error: Exception) -> dict[str, Any]:
    """What the service says about a request that it refuses, or why there is no answer."""
    place = re.sub("//.*@", "//", params.url)
    if isinstance(error, HTTPError):
        try:
            return {**json.load(error)}
        except UNREADABLE:
            return {"detail": f"{place}: HTTP {error.code} in place of an answer"}
    # The text of other errors may quote the key or a password.
    reason = str(error) if isinstance(error, OSError) else "no answer of the service; check url and api_key"
    return {"detail": f"{place}: {reason}"}
