"""The runbooks: those of this package, and those of a site in their place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path

from rca.errors import InvalidInput, SourceError
from rca.runbook.procedures.sources import Common, RunbookSource, unknown_placeholders
from rca.window.causes import SPECS
from rca.yaml_documents import read_document

COMMON = "common"
_HINT = "docs/how-to/runbooks.md describes the files"


@dataclass(frozen=True)
class Library:
    """All runbooks.

    Attributes
    ----------
    runbooks : mapping of str to RunbookSource
        By cause: those of the catalogue, and ``unknown``.
    of_site : frozenset of str
        Causes whose runbook is the site's own.
    """

    runbooks: Mapping[str, RunbookSource]
    common: Common
    of_site: frozenset[str] = frozenset()

    @classmethod
    def read(cls, folder: Path | None = None) -> Library:
        """The runbooks of this package, with those of a folder in their place.

        Parameters
        ----------
        folder : Path, optional
            Holds ``CAUSE.yaml``, which replaces the runbook of a cause, and ``common.yaml``, which replaces
            single entries of what all runbooks share.

        Raises
        ------
        SourceError
            If the folder or a file cannot be read.
        InvalidInput
            If a file has a wrong name, entry or placeholder, or the folder holds no runbook.
        """
        return _shipped() if folder is None else _shipped()._replaced(folder)

    def source(self, cause: str) -> RunbookSource:
        """The runbook of a cause.

        Raises
        ------
        InvalidInput
            If there is no such cause.
        """
        if cause not in self.runbooks:
            raise InvalidInput(f"there is no cause {cause!r}", hint=f"one of {', '.join(self.runbooks)}")
        return self.runbooks[cause]

    def _replaced(self, folder: Path) -> Library:
        try:
            found = sorted(path for path in folder.iterdir() if path.suffix in (".yaml", ".yml"))
        except OSError as error:
            raise SourceError(f"{folder}: cannot be read: {error.strerror}", hint=_HINT) from None
        if not found:
            raise InvalidInput(f"{folder} holds no runbook", hint=_HINT)
        wrong = [path.name for path in found if path.stem not in (COMMON, *self.runbooks)]
        if wrong:
            known = f"files are named common.yaml or after a cause: {', '.join(self.runbooks)}"
            raise InvalidInput(f"{folder}: {wrong[0]} is named after no cause", hint=known)
        common = self.common
        for path in found:
            if path.stem == COMMON:
                common = common.replaced(read_document(path, Common, hint=_HINT))
                _check(common, common, path)
        own = {}
        for path in found:
            if path.stem != COMMON:
                own[path.stem] = read_document(path, RunbookSource, hint=_HINT)
                _check(own[path.stem], common, path)
        return Library({**self.runbooks, **own}, common, frozenset(own))


@cache
def _shipped() -> Library:
    with as_file(files("rca.runbook.procedures") / "files") as folder:
        common = read_document(folder / f"{COMMON}.yaml", Common, hint=_HINT)
        runbooks = {
            cause: read_document(folder / f"{cause}.yaml", RunbookSource, hint=_HINT) for cause in SPECS
        }
    return Library(runbooks, common)


def _check(source: RunbookSource | Common, common: Common, path: Path) -> None:
    """Refuse names that nothing defines."""
    if wrong := unknown_placeholders(source, common.placeholders):
        raise InvalidInput(f"{path}: there is no placeholder {wrong[0]}", hint=_known(common))
    steps = source.steps() if isinstance(source, RunbookSource) else source.roll_back or ()
    for step in steps:
        if step.use is not None and step.use not in common.steps:
            known = ", ".join(common.steps)
            raise InvalidInput(f"{path}: there is no shared step {step.use}", hint=f"steps: {known}")
    if isinstance(source, Common):
        if nested := [name for name, step in source.steps.items() if step.use is not None]:
            raise InvalidInput(f"{path}: steps.{nested[0]}: a shared step uses no other", hint=_HINT)
        if wrong := [name for name in source.values if name not in source.placeholders]:
            raise InvalidInput(f"{path}: there is no placeholder {wrong[0]}", hint=_known(common))


def _known(common: Common) -> str:
    return f"write {{{{ name }}}}; names: {', '.join(common.placeholders)}"
