"""What the documentation shows is run: Python blocks, `rca` commands, JSON windows, links, docstrings."""

from __future__ import annotations

import doctest
import importlib
import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import rca
from rca.cli import run as run_command_line

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^```(?P<language>[\w-]*)[^\n]*\n(?P<code>.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?P<target>[^)\s#]+)[^)]*\)")
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


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that reads like the repository's root, and that an example may write into."""
    for entry in ROOT.iterdir():
        (tmp_path / entry.name).symlink_to(entry)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_there_is_something_to_run() -> None:
    assert WITH_PYTHON
    assert COMMANDS
    assert WITH_DOCTESTS


@pytest.mark.parametrize("path", WITH_PYTHON, ids=lambda path: str(path.relative_to(ROOT)))
@pytest.mark.usefixtures("checkout")
def test_python_blocks_run_one_after_the_other(path: Path) -> None:
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


@pytest.mark.parametrize(
    ("place", "command"), COMMANDS, ids=[f"{place} {command}" for place, command in COMMANDS]
)
@pytest.mark.usefixtures("checkout")
def test_commands_run(place: str, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = shlex.split(command, comments=True)[1:]
    assert not set(arguments) & {"<", ">", "&&", ";"}, f"{place}: use arguments, or mark the line `{NOT_RUN}`"
    assert arguments[:1] not in [[name] for name in ENDLESS], f"{place}: mark `{command}` with `{NOT_RUN}`"
    with pytest.raises(SystemExit) as left:
        run_command_line(arguments)
    told = capsys.readouterr()
    code = left.value.code or 0
    assert code in VERDICTS, f"{place}: `{command}` exits with {code}: {told.err}"
    assert "Traceback" not in told.err


def test_the_answer_in_the_readme_is_todays(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    # pytest-xdist hands its own width to the workers, in which tables would be wrapped.
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit):
        run_command_line(["diagnose", "data/windows/cpu-contention-node", "--format", "table"])
    told = _words(capsys.readouterr().out)
    shown = next(block for block in BLOCKS if block.path.name == "README.md" and block.language == "text")
    for line in filter(str.strip, shown.code.replace("…", "").splitlines()):
        assert _words(line) in told


def _words(text: str) -> str:
    """Without frames and line breaks, which depend on the terminal's width."""
    return " ".join(re.sub("[│╭╮╰╯─]", " ", text).split())


@pytest.mark.parametrize("block", WINDOWS, ids=lambda block: block.place)
def test_windows_shown_as_json_can_be_diagnosed(block: Block) -> None:
    window = rca.read_window(block.code.encode())
    assert rca.diagnose(window).job_id == json.loads(block.code)["job"]["job_id"]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_that_exist(path: Path) -> None:
    prose = FENCE.sub("", path.read_text(encoding="utf-8"))
    targets = [found["target"] for found in LINK.finditer(prose)]
    local = [target for target in targets if "://" not in target and not target.startswith("mailto:")]
    assert [target for target in local if not (path.parent / target).exists()] == []


@pytest.mark.parametrize("path", WITH_DOCTESTS, ids=lambda path: str(path.relative_to(ROOT)))
@pytest.mark.usefixtures("checkout")
def test_docstring_examples_run(path: Path) -> None:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        pytest.skip(f"{name} needs an extra that is not installed: {error}")
    ran = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert ran.attempted > 0
    assert ran.failed == 0


def test_a_failing_example_is_told_with_its_place(tmp_path: Path) -> None:
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
