"""The page as one standalone HTML document."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from rca.runbook.page import RunbookPage
from rca.runbook.phrases import Name, Phrase, plain
from rca.runbook.pictures.svg import Picture


def html(page: RunbookPage, pictures: Sequence[Picture] = ()) -> str:
    """Render `page` with its pictures; needs no script, font or file from elsewhere."""
    return _template().render(page=page, pictures=pictures)


def page_environment(package: str) -> Environment:
    """Jinja2 for the pages in the folder ``templates`` of a package."""
    return Environment(
        # Rather than a path: it also works from a zipped or frozen installation.
        loader=PackageLoader(package, "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@cache
def _template() -> Template:
    environment = page_environment("rca.runbook")
    environment.filters["phrase"] = _phrase
    environment.filters["plain"] = plain
    return environment.get_template("page.html.j2")


def _phrase(phrase: Phrase) -> Markup:
    """Escaped text with names in ``<code>``."""
    parts = (
        Markup("<code>{}</code>").format(part) if isinstance(part, Name) else Markup.escape(part)
        for part in phrase
    )
    return Markup("").join(parts)
