"""SVG elements with escaped text, and what all pictures share."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from rca.runbook.phrases import clean

#: Width of a picture, in units of its own.
WIDTH = 720.0
#: Height of a line of text.
LINE = 16.0
#: Shades of a map: the number of steps from white to black.
SHADES = 8


@dataclass(frozen=True)
class Picture:
    """One picture.

    Attributes
    ----------
    caption : str
        How to read it, in a sentence.
    """

    title: str
    caption: str
    svg: Markup


def picture(title: str, caption: str, height: float, *elements: Markup) -> Picture:
    """A picture of the common width with its title for screen readers."""
    svg = tag(
        "svg",
        tag("title", title),
        *elements,
        viewBox=f"0 0 {WIDTH:g} {height:g}",
        role="img",
    )
    return Picture(title, caption, svg)


def tag(name: str, *children: Markup | str, **attributes: str | float | None) -> Markup:
    """One element; an underscore in a name of an attribute is a hyphen."""
    shown = (
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), _value(value))
        for key, value in attributes.items()
        if value is not None
    )
    inner = Markup("").join(children)
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(name), Markup("").join(shown), inner)  # noqa: S704


def text(x: float, y: float, words: str, *, anchor: str = "start", strong: bool = False) -> Markup:
    """A line of text whose base line is at `y`."""
    return tag("text", clean(words), x=x, y=y, text_anchor=anchor, class_="strong" if strong else None)


def box(x: float, y: float, width: float, height: float, class_: str, shade: float | None = None) -> Markup:
    """A rectangle; `shade` is its opacity."""
    return tag("rect", x=x, y=y, width=max(width, 0.0), height=height, class_=class_, fill_opacity=shade)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    """A straight line."""
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def shortened(words: str, most: int) -> str:
    """Words that fit into `most` characters."""
    return words if len(words) <= most else f"{words[: most - 1]}…"


def _value(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.5g}"
