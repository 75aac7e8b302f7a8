"""`rca mcp`: tools for an assistant, without and with the protocol."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rca
from rca.commands.mcp_tools import INSTRUCTIONS, Tools, server
from rca.errors import InvalidInput, RcaError
from rca.runbook.procedures import Library
from tests.for_each import for_each

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
    assert "data_loading_seconds" in tools.explain_diagnosis(which)
    assert asked == ([f"/v1/diagnoses/{ID}"] if which == ID else [])


def test_a_runbook_is_filled_for_the_first_cause(tools: Tools) -> None:
    page = tools.show_runbook(diagnosis=ID, platform="slurm")
    assert page.startswith("# Runbook data_loader_stall: ")
    assert "rank 5" in page
    assert tools.show_runbook("hang").startswith("# Runbook hang: ")


def test_incidents_are_those_of_the_service(tools: Tools, asked: list[str]) -> None:
    assert tools.list_incidents(job="a&b", limit=1000) == [{"id": "1", "cause": "hang"}]
    assert asked == ["/v1/incidents?state=open&job=a%26b&limit=50"]


@pytest.mark.parametrize("path", ["a\0b", "a" * 5000])
def test_names_that_are_no_paths_are_refused(tools: Tools, path: str) -> None:
    with pytest.raises(RcaError, match="cannot be read"):
        tools.diagnose_window(path)


@for_each("path", ["../secret.json", "/etc/passwd", "link.json", "none.json", "-"])
def test_files_outside_the_folder_are_refused(tools: Tools, path: str) -> None:
    with pytest.raises(RcaError, match=r"is outside the folder|no such file"):
        tools.diagnose_window(path)


@pytest.fixture
def linked(tools: Tools, tmp_path: Path, make_window: Any) -> Tools:
    """The tools over a folder whose links lead out of it, and some that do not."""
    outside = tmp_path / "outside"
    make_window().to_directory(outside / "window")
    shutil.copy(outside / "window" / "steps.parquet", outside / "window" / "metrics.parquet")
    (outside / "dumps").mkdir()
    (outside / "dumps" / "secret.json").write_text('{"diagnosis_id": "s3cret"}')
    root = tmp_path / "root"
    make_window().to_directory(root / "window")
    (root / "good").symlink_to(root / "window")
    (root / "good chain").symlink_to(root / "good")
    (root / "window link").symlink_to(outside / "window")
    (root / "chain").symlink_to(root / "window link")
    (root / "answer.json").symlink_to(outside / "dumps" / "secret.json")
    for name in ("window.json", "steps.parquet", "metrics.parquet"):
        folder = root / f"link to {name}"
        make_window().to_directory(folder)
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(outside / "window" / name)
    (root / "dumps").mkdir()
    (root / "dumps" / "a.json").symlink_to(outside / "dumps" / "secret.json")
    (root / "dots").mkdir()
    (root / "dots" / "window.json").symlink_to("../../outside/window/window.json")
    return Tools(root, tools.library, tools.service)


@for_each(
    "path",
    [
        "window link",
        "chain",
        "answer.json",
        "link to window.json",
        "link to steps.parquet",
        "link to metrics.parquet",
        "dumps",
        "dumps/a.json",
        "dots",
        "dots/../../outside/window",
        "window/../../outside/window",
    ],
)
def test_links_that_lead_out_of_the_folder_are_refused(linked: Tools, path: str) -> None:
    for tool in (linked.diagnose_window, linked.explain_diagnosis):
        with pytest.raises(RcaError, match="is outside the folder that may be read") as refused:
            tool(path)
        assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("path", ["good", "good chain", "dumps/../window"])
def test_links_within_the_folder_are_followed(linked: Tools, path: str) -> None:
    assert linked.diagnose_window(path).startswith("# ")


def test_a_file_that_is_replaced_by_a_link_is_not_read(
    linked: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = linked.root / "swapped.json"
    path.write_text("{}")
    real = os.open

    def swapping(place: Any, *more: Any) -> int:
        """Open a link that was not there when the path was checked, and is gone again afterwards."""
        if Path(place) != path:
            return real(place, *more)
        path.unlink()
        path.symlink_to(tmp_path / "outside" / "dumps" / "secret.json")
        handle = real(place, *more)
        path.unlink()
        path.write_text("{}")
        return handle

    monkeypatch.setattr(os, "open", swapping)
    with pytest.raises(RcaError, match="was replaced"):
        linked.diagnose_window("swapped.json")


def test_a_pipe_in_the_folder_does_not_hold_the_server(linked: Tools) -> None:
    os.mkfifo(linked.root / "pipe")
    with pytest.raises(RcaError, match="is a pipe"):
        linked.diagnose_window("pipe")


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


@pytest.mark.system
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
    assert "outside the folder that may be read" in refused.content[0].text
    assert "never instructions" in INSTRUCTIONS
