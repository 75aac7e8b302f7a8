"""The Helm chart renders the manifests of kustomize, and its schema refuses values that mean nothing."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
from functools import reduce
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from rca_api.shell.settings.settings import Settings
from tests.for_each import for_each

DEPLOY = Path(__file__).parents[2] / "api" / "deploy"
CHART = DEPLOY / "helm"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
_BLOCK = re.compile(
    r"[ \t]*\{\{- if \.Values\.([\w.]+) \}\}\n((?:(?!\{\{- if|\{\{- end).)*?)[ \t]*\{\{- end \}\}\n?",
    re.DOTALL,
)
_LINES = re.compile(r"\s*\{\{- toYaml \.Values\.([\w.]+) \| nindent (\d+) \}\}")
_TEXT = re.compile(r"\{\{ \.Values\.([\w.]+)( \| quote)? \}\}")


def rendered(values: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """Every object of the chart by kind and name; the templates use only what is handled here."""

    def value(name: str) -> Any:
        return reduce(lambda held, part: held[part], name.split("."), values)

    def lines(found: re.Match[str]) -> str:
        text = yaml.safe_dump(value(found[1])).rstrip("\n")
        return "\n" + "\n".join(" " * int(found[2]) + line for line in text.splitlines())

    objects = {}
    for path in sorted((CHART / "templates").iterdir()):
        text = path.read_text()
        while _BLOCK.search(text):
            text = _BLOCK.sub(lambda found: found[2] if value(found[1]) else "", text)
        text = _LINES.sub(lines, text)
        text = _TEXT.sub(
            lambda found: json.dumps(str(value(found[1]))) if found[2] else str(value(found[1])), text
        )
        assert "{{" not in text
        objects |= {
            (each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(text) if each
        }
    return objects


def of_kustomize() -> dict[tuple[str, str], dict[str, Any]]:
    folder = DEPLOY / "kubernetes"
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    tags = {each["name"]: each["newTag"] for each in kustomization["images"]}
    objects = {}
    for name in kustomization["resources"]:
        for each in yaml.safe_load_all((folder / name).read_text()):
            # The namespace is that of the release.
            if each["kind"] != "Namespace":
                objects[each["kind"], each["metadata"]["name"]] = each
    for each in objects.values():
        pod = each.get("spec", {}).get("template", {}).get("spec", {})
        for container in (*pod.get("initContainers", ()), *pod.get("containers", ())):
            container["image"] += f":{tags[container['image']]}"
    return objects


def changed(path: str, value: Any) -> dict[str, Any]:
    values = copy.deepcopy(VALUES)
    *parents, last = path.split(".")
    reduce(lambda held, part: held[part], parents, values)[last] = value
    return values


def test_the_chart_makes_the_objects_of_kustomize() -> None:
    assert rendered(VALUES) == of_kustomize()


@for_each(
    ("switch", "kind"),
    [
        ("worker.enabled", "Deployment"),
        ("storage.create", "PersistentVolumeClaim"),
        ("autoscaling.enabled", "HorizontalPodAutoscaler"),
        ("networkPolicy.enabled", "NetworkPolicy"),
    ],
)
def test_a_part_that_is_switched_off_is_not_made(switch: str, kind: str) -> None:
    [(gone, _)] = rendered(VALUES).keys() - rendered(changed(switch, False)).keys()
    assert gone == kind


def test_values_reach_the_objects() -> None:
    values = changed("image.repository", "registry.example/rca")
    values["storage"] |= {"className": "nfs", "claimName": "shared"}
    values["service"]["replicas"] = 3
    found = rendered(values)
    service = found["Deployment", "straggler-rca"]["spec"]
    assert service["template"]["spec"]["containers"][0]["image"] == "registry.example/rca:latest"
    claims = [
        each["spec"]["template"]["spec"]["volumes"][0]
        for (kind, _), each in found.items()
        if kind == "Deployment"
    ]
    assert {each["persistentVolumeClaim"]["claimName"] for each in claims} == {"shared"}
    assert found["PersistentVolumeClaim", "shared"]["spec"]["storageClassName"] == "nfs"
    assert (
        service["replicas"] == found["HorizontalPodAutoscaler", "straggler-rca"]["spec"]["minReplicas"] == 3
    )


def test_the_schema_takes_the_values_and_settings_exist() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    jsonschema.validate(VALUES, SCHEMA)
    names = {name for name in VALUES["settings"] if name.startswith("RCA_")}
    assert names <= {f"RCA_{name.upper()}" for name in Settings.model_fields}


@for_each(
    ("path", "value"),
    [
        ("service.replicas", 0),
        ("service.replica", 2),
        ("settings.RCA_MIGRATE", False),
        ("settings.rca_migrate", "false"),
        ("storage.size", "lots"),
        ("image", {"repository": "x"}),
        ("networkPolicy.egress", [{"port": "https"}]),
    ],
)
def test_the_schema_refuses_values_that_mean_nothing(path: str, value: Any) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(changed(path, value), SCHEMA)


@pytest.mark.system
@pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not installed")
def test_helm_renders_what_this_module_renders() -> None:
    subprocess.run(["helm", "lint", "--strict", CHART], check=True, capture_output=True)
    made = subprocess.run(["helm", "template", "x", CHART], check=True, capture_output=True, text=True).stdout
    objects = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(made) if each}
    assert objects == of_kustomize()
