"""A Robusta action: diagnose the training job of an alert, and add who, why and what to do to its message.

The service reads the window from Prometheus (`RCA_SOURCES`). The key needs the scope `diagnose`.
Beside Robusta only the standard library is used, so the runner needs no further package.
"""

# Robusta reads the annotations of actions when they run, so they must not become strings.
import json
from html import escape
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from robusta.api import ActionParams, MarkdownBlock, PrometheusKubernetesAlert, action


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
    except HTTPError as error:
        text = _no_diagnosis(_problem(error))
    except (OSError, ValueError) as error:
        text = _no_diagnosis({"detail": f"{params.url}: {error}"})
    alert.add_enrichment([MarkdownBlock(text)])


def _asked(params: DiagnoseParams, path: str, body: Any | None = None) -> bytes:
    headers = {
        "Authorization": f"Bearer {params.api_key}",
        "Content-Type": "application/json",
        "Accept": "application/json" if body else "text/markdown",
    }
    content = json.dumps(body).encode() if body else None
    request = Request(params.url.rstrip("/") + path, content, headers)  # noqa: S310  (an address of the site)
    with urlopen(request, timeout=params.timeout_seconds) as response:  # noqa: S310
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
    return "*No diagnosis:* " + ". ".join(filter(None, (answer.get("detail"), answer.get("hint"))))


def _problem(error: HTTPError) -> dict[str, Any]:
    """What the service says about a request that it refuses."""
    try:
        found: dict[str, Any] = json.load(error)
    except ValueError:
        return {"detail": f"HTTP {error.code}"}
    return found
