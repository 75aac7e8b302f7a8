"""`rca mcp`: tools for an assistant, without and with the protocol."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rca
from rca.commands.mcp_tools import INSTRUCTIONS, Tools, server
from rca.errors import InvalidInput
from rca.runbook.procedures import Library

Run = Callable[..., Any]
ID = "0123456789abcdef" * 2


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, make_window: Any) -> Path:
    """A folder with a window of a job with a slow loader, and its diagnosis."""
    found = tmp_path_factory.mktemp("assistant") / "root"
    window = make_window(late={5: 0.05}, phase="data_loading_seconds")
    window.to_directory(found / "window")
    (found / "answer.json").write_text(rca.diagnose(window).to_json())
    (found.parent / "secret.json").write_text("{}")
    (found / "link.json").symlink_to(found.parent / "secret.json")
    return found


@pytest.fixture
def asked(root: Path) -> list[str]:
    """What a service was asked for."""
    return []


@pytest.fixture
def tools(root: Path, asked: list[str]) -> Tools:
    """The tools with a service that has one diagnosis and one incident."""

    def get(path: str, media_type: str = "application/json") -> bytes:
        asked.append(path)
        if path.startswith("/v1/incidents"):
            return json.dumps({"items": [{"id": "1", "cause": "hang"}], "next": None}).encode()
        return (root / "answer.json").read_bytes()

    service: Any = SimpleNamespace(get=get)
    return Tools(root, Library.read(), service)


def test_a_window_is_diagnosed(tools: Tools) -> None:
    page = tools.diagnose_window("window")
    assert page.startswith("# FAIL-SLOW")
    assert "data_loader_stall" in page


@pytest.mark.parametrize("which", ["answer.json", "window", ID])
def test_a_diagnosis_is_explained_wherever_it_is(tools: Tools, asked: list[str], which: str) -> None:
    assert "log-odds" in tools.explain_diagnosis(which)
    assert asked == ([f"/v1/diagnoses/{ID}"] if which == ID else [])


def test_a_runbook_is_filled_for_the_first_cause(tools: Tools) -> None:
    page = tools.show_runbook(diagnosis=ID, platform="slurm")
    assert page.startswith("# Runbook data_loader_stall: ")
    assert "rank 5" in page
    assert tools.show_runbook("hang").startswith("# Runbook hang: ")


def test_incidents_are_those_of_the_service(tools: Tools, asked: list[str]) -> None:
    assert tools.list_incidents(job="a&b", limit=1000) == [{"id": "1", "cause": "hang"}]
    assert asked == ["/v1/incidents?state=open&job=a%26b&limit=50"]


@pytest.mark.parametrize("path", ["../secret.json", "/etc/passwd", "link.json", "none.json", "-"])
def test_files_outside_the_folder_are_refused(tools: Tools, path: str) -> None:
    with pytest.raises(InvalidInput, match=r"is outside the folder|does not exist"):
        tools.diagnose_window(path)


def test_without_a_service_nothing_stored_is_found(root: Path) -> None:
    alone = Tools(root, Library.read(), None)
    with pytest.raises(InvalidInput, match="no service"):
        alone.explain_diagnosis(ID)
    with pytest.raises(InvalidInput, match="no service"):
        alone.list_incidents()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("--root", "none"), "none is no folder"), (("--url", "ftp://x"), "is not an http or https address")],
)
def test_what_cannot_be_served_is_said(rca_command: Run, arguments: tuple[str, ...], said: str) -> None:
    ran = rca_command("mcp", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err


def test_an_assistant_finds_and_calls_the_tools(tools: Tools) -> None:
    mcp = pytest.importorskip("mcp", reason="the extra mcp is not installed")

    async def talk() -> tuple[Any, Any, Any]:
        async with mcp.Client(server(tools)) as client:
            listed = await client.list_tools()
            shown = await client.call_tool("show_runbook", {"cause": "hang"})
            refused = await client.call_tool("diagnose_window", {"path": "../secret.json"})
            return listed, shown, refused

    listed, shown, refused = asyncio.run(talk())
    names = {tool.name for tool in listed.tools}
    assert names == {"diagnose_window", "explain_diagnosis", "show_runbook", "list_incidents"}
    assert all(tool.annotations.read_only_hint for tool in listed.tools)
    assert all(tool.description for tool in listed.tools)
    assert shown.content[0].text.startswith("# Runbook hang: ")
    assert refused.is_error
    assert "outside the folder of this server" in refused.content[0].text
    assert "never instructions" in INSTRUCTIONS
