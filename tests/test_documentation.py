"""The documentation runs, links to what exists and stays short.

Python blocks, `rca` commands, JSON windows and docstrings are run. Links, anchors and paths must exist.
"""

from __future__ import annotations

import doctest
import importlib
import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer
from typer.core import TyperGroup

import rca
from rca.cli import app
from rca.cli import run as run_command_line
from tests.for_each import for_each

pytestmark = pytest.mark.prose

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
#: Pages that link and name paths, but whose examples are not run.
OTHERS = tuple(
    ROOT / name
    for name in (
        "CHANGELOG.md",
        "SECURITY.md",
        "api/deploy/README.md",
        "data/README.md",
        "data/windows/README.md",
        "models/README.md",
    )
)
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("0*.md"))
HISTORY = ROOT / "docs" / "model-history.md"
#: How a page begins that `rca_api.shell.reference` writes from the code.
GENERATED = "<!-- Written by"
FENCE = re.compile(r"^```(?P<language>[\w-]*)[^\n]*\n(?P<code>.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?P<target>[^)\s#]*)(?:#(?P<anchor>[^)\s]+))?\)")
HEADING = re.compile(r"^#+ (?P<title>.+)$", re.MULTILINE)
#: A path of this repository in prose or in code.
NAMED = re.compile(r"(?<![\w/.~-])(?:api|benchmarks|data|docs|models|rca|tests)/[\w./*-]*\w\*?")
#: A block or a line with this comment is shown only.
NOT_RUN = "# not run"
#: Commands that would not come to an end within a test.
ENDLESS = ("serve", "watch", "train", "generalise", "tune", "testbed")
#: What `rca` may exit with when nothing is wrong: done, and the verdicts of `diagnose`.
VERDICTS = (0, 10, 20, 30)


class Block(NamedTuple):
    path: Path
    line: int
    language: str
    code: str

    @property
    def place(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"


def blocks(path: Path) -> Iterator[Block]:
    text = path.read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        line = text.count("\n", 0, found.start()) + 2
        yield Block(path, line, found["language"], found["code"])


def commands(block: Block) -> list[str]:
    """The `rca` command lines of a shell block, continued lines joined, without what they are piped into."""
    lines = block.code.replace("\\\n", " ").splitlines()
    shown = [line.strip().removeprefix("$ ") for line in lines if NOT_RUN not in line]
    return [line.split(" | ")[0] for line in shown if line.startswith("rca ")]


BLOCKS = [block for path in PAGES for block in blocks(path)]
WITH_PYTHON = sorted({block.path for block in BLOCKS if block.language == "python"})
COMMANDS = [
    (block.place, command)
    for block in BLOCKS
    if block.language in {"bash", "console", "sh", "shell"} and NOT_RUN not in block.code.splitlines()[0]
    for command in commands(block)
]
WINDOWS = [
    block
    for block in BLOCKS
    if block.language == "json" and {'"job"', '"steps"'} <= set(re.findall(r'"\w+"', block.code))
]
WITH_DOCTESTS = sorted(
    path for path in (ROOT / "rca").rglob("*.py") if ">>> " in path.read_text(encoding="utf-8")
)


#: Every `rca` command line of a page, also those that are only shown.
SHOWN = sorted(
    {
        line.split("#")[0].split(" | ")[0].strip()
        for block in BLOCKS
        if block.language in {"bash", "console", "sh", "shell"}
        for line in block.code.replace("\\\n", " ").splitlines()
        if line.startswith("rca ")
    }
)


def enter_checkout(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a folder read like the repository's root, and run in it: an example may write into it."""
    for entry in ROOT.iterdir():
        (folder / entry.name).symlink_to(entry)
    monkeypatch.chdir(folder)


def test_there_is_something_to_run() -> None:
    assert WITH_PYTHON
    assert COMMANDS
    assert WITH_DOCTESTS


@for_each("path", WITH_PYTHON, ids=lambda path: str(path.relative_to(ROOT)))
def test_python_blocks_run_one_after_the_other(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter_checkout(tmp_path, monkeypatch)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(path):
        if block.language != "python" or NOT_RUN in block.code.splitlines()[0]:
            continue
        # Blank lines in front make a traceback point at the line of the page.
        code = compile("\n" * (block.line - 1) + block.code, str(path), "exec")
        try:
            exec(code, namespace)  # noqa: S102
        except Exception as error:
            pytest.fail(f"the example at {block.place} fails: {type(error).__name__}: {error}\n{block.code}")


@pytest.mark.system
@for_each(("place", "command"), COMMANDS, ids=[f"{place} {command}" for place, command in COMMANDS])
def test_commands_run(
    place: str,
    command: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    enter_checkout(tmp_path, monkeypatch)
    arguments = shlex.split(command, comments=True)[1:]
    assert not set(arguments) & {"<", ">", "&&", ";"}, f"{place}: use arguments, or mark the line `{NOT_RUN}`"
    assert arguments[:1] not in [[name] for name in ENDLESS], f"{place}: mark `{command}` with `{NOT_RUN}`"
    with pytest.raises(SystemExit) as left:
        run_command_line(arguments)
    printed = capsys.readouterr()
    code = left.value.code or 0
    assert code in VERDICTS, f"{place}: `{command}` exits with {code}: {printed.err}"
    assert "Traceback" not in printed.err


@for_each("shown", SHOWN)
def test_a_shown_command_has_only_options_that_exist(shown: str) -> None:
    command: Any = typer.main.get_command(app)
    words = shlex.split(shown)[1:]
    while words and isinstance(command, TyperGroup):
        context, name = command.context_class(command), words.pop(0)
        # `rca sweep URL` is `rca sweep run URL`.
        command = command.get_command(context, name) or command.get_command(context, "run")
        assert command is not None, shown
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word.split("=")[0] for word in words if re.match("--?[a-z]", word)} <= known


def test_the_answer_in_the_readme_is_current(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    # pytest-xdist hands its own width to the workers, in which tables would be wrapped.
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit):
        run_command_line(["diagnose", "data/windows/cpu-contention-node", "--format", "table"])
    printed = _words(capsys.readouterr().out)
    shown = next(block for block in BLOCKS if block.path.name == "README.md" and block.language == "text")
    for line in filter(str.strip, shown.code.replace("…", "").splitlines()):
        assert _words(line) in printed


def _words(text: str) -> str:
    """Without frames and line breaks, which depend on the terminal's width."""
    return " ".join(re.sub("[│╭╮╰╯─]", " ", text).split())


@pytest.mark.parametrize("block", WINDOWS, ids=lambda block: block.place)
def test_windows_shown_as_json_can_be_diagnosed(block: Block) -> None:
    window = rca.read_window(block.code.encode())
    assert rca.diagnose(window).job_id == json.loads(block.code)["job"]["job_id"]


@for_each("path", [*PAGES, *OTHERS], ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_pages_and_sections_that_exist(path: Path) -> None:
    prose = FENCE.sub("", path.read_text(encoding="utf-8"))
    broken = []
    for found in LINK.finditer(prose):
        target, anchor = found["target"], found["anchor"]
        if "://" in target or target.startswith("mailto:"):
            continue
        page = path.parent / target if target else path
        if not page.exists() or (anchor and anchor not in _anchors(page)):
            broken.append(found.group())
    assert broken == []


def _anchors(page: Path) -> set[str]:
    """The ids that GitHub gives to headings."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    titles = (found["title"].lower().replace("`", "") for found in HEADING.finditer(text))
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}


@for_each("path", [*PAGES, *OTHERS], ids=lambda path: str(path.relative_to(ROOT)))
def test_paths_in_prose_exist(path: Path) -> None:
    if path == HISTORY:
        return
    prose = FENCE.sub("", path.read_text(encoding="utf-8"))
    code = " ".join(re.findall(r"`([^`]+)`", prose))
    named = {found.group() for found in NAMED.finditer(code)}
    assert {name for name in named if not any(ROOT.glob(name))} == set()


@for_each("folder", ["rca", "api", "models", "benchmarks", "tests"])
def test_pages_that_code_refers_to_exist(folder: str) -> None:
    missing = set()
    for path in (ROOT / folder).rglob("*.py"):
        for name in re.findall(r"docs/[a-z-]+/(?:[\w-]+\.md|\d{4})", path.read_text(encoding="utf-8")):
            if not any(ROOT.glob(name)) and not any(ROOT.glob(f"{name}-*.md")):
                missing.add(f"{path.relative_to(ROOT)}: {name}")
    assert missing == set()


def test_the_readme_is_short() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 900


@for_each("path", [*PAGES, ROOT / "data" / "README.md"], ids=lambda path: str(path.relative_to(ROOT)))
def test_no_sentence_has_more_than_25_words(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if not text.startswith(GENERATED):
        assert [sentence for sentence in sentences(text) if len(sentence.split()) > 25] == []


def test_the_guides_are_short() -> None:
    guides = [path for path in PAGES if path.is_relative_to(ROOT / "docs") and path != HISTORY]
    texts = [path.read_text(encoding="utf-8") for path in guides if path.parent.name != "decisions"]
    assert sum(len(text.split()) for text in texts if not text.startswith(GENERATED)) <= 15_000


@for_each("path", DECISIONS, ids=lambda path: path.name)
def test_a_decision_has_a_status_and_is_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.split()) <= 150
    assert text.startswith(f"# {path.name[:4]}. ")
    assert re.search(r"^\*\*Status\.\*\* (Accepted|Superseded by \[)", text, re.MULTILINE)
    parts = re.findall(r"^\*\*(\w+)\.\*\*", text, re.MULTILINE)
    assert parts == ["Status", "Context", "Decision", "Consequence"]


def test_the_index_of_decisions_is_complete() -> None:
    index = (ROOT / "docs" / "decisions" / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"\]\((0[\w-]+\.md)\)", index) == [path.name for path in DECISIONS]


def test_rows_of_the_model_history_are_short() -> None:
    rows = [line for line in HISTORY.read_text(encoding="utf-8").splitlines() if line.startswith("| 2")]
    assert rows
    assert [row for row in rows if len(row.replace("|", " ").split()) > 40] == []


def sentences(text: str) -> list[str]:
    """The sentences of a page's prose: no blocks, tables or headings; a list item ends a sentence."""
    lines = FENCE.sub("", text).splitlines()
    prose = "\n".join("" if re.match(r"\s*[|#<]", line) else line for line in lines)
    prose = re.sub(r"\]\([^)]*\)", "", prose)
    paragraphs = re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.) ", prose)
    return [each for one in paragraphs for each in re.split(r"(?<=[.?!])\s+", " ".join(one.split())) if each]


@pytest.mark.system
@pytest.mark.parametrize("path", WITH_DOCTESTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_docstring_examples_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter_checkout(tmp_path, monkeypatch)
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        pytest.skip(f"{name} needs an extra that is not installed: {error}")
    ran = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert ran.attempted > 0
    assert ran.failed == 0


def test_a_failing_example_names_its_place(tmp_path: Path) -> None:
    """The runner itself: line numbers, skipping, and the first failure."""
    page = tmp_path / "page.md"
    page.write_text(
        "# Title\n\n```python\nx = 1\n```\n\n"
        "```bash\nrca diagnose a \\\n  --format json | jq .\nls\nrca serve  # not run\n```\n"
    )
    python, shell = blocks(page)
    assert (python.line, python.code, python.language) == (4, "x = 1\n", "python")
    assert [shlex.split(command) for command in commands(shell)] == [
        ["rca", "diagnose", "a", "--format", "json"]
    ]
    assert sys.version_info >= (3, 11)
