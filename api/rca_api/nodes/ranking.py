"""Pages of nodes in the order of a probability that is computed, so that no database can sort by it."""

from __future__ import annotations

import base64
from collections.abc import Iterable

import orjson

from rca_api.nodes.schemas import Node
from rca_api.problems import ProblemError


def page(nodes: Iterable[Node], limit: int, cursor: str | None) -> tuple[list[Node], str | None]:
    """Sort nodes, the likeliest lemon first, and cut one page; gives it and the cursor of the next.

    Raises
    ------
    ProblemError
        422 if the cursor is none of ours.
    """
    ordered = sorted(nodes, key=_key)
    if cursor is not None:
        last = _read_cursor(cursor)
        ordered = [node for node in ordered if _key(node) > last]
    more = len(ordered) > limit
    return ordered[:limit], _cursor(ordered[limit - 1]) if more else None


def _key(node: Node) -> tuple[float, str]:
    return -node.lemon_probability, node.node


def _cursor(node: Node) -> str:
    return base64.urlsafe_b64encode(orjson.dumps(_key(node))).decode().rstrip("=")


def _read_cursor(cursor: str) -> tuple[float, str]:
    try:
        probability, name = orjson.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        if not isinstance(probability, float) or not isinstance(name, str):
            raise TypeError
    except (ValueError, TypeError):
        raise ProblemError("invalid-parameters", "cursor: is not one that this list gave") from None
    return probability, name
