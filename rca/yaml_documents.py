"""Small YAML documents that people write, such as label maps and plans: errors name the file and the line."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from rca.errors import InvalidInput, SourceError, TooLarge, cut
from rca.files import read_text

if TYPE_CHECKING:
    import yaml

#: Documents written by hand are smaller.
MAX_BYTES = 1 << 20
_Model = TypeVar("_Model", bound=BaseModel)


def read_document(path: str | os.PathLike[str], model: type[_Model], *, hint: str) -> _Model:
    """Read a YAML or JSON file with one mapping; an empty file is an empty mapping.

    Parameters
    ----------
    model : type
        What the mapping is checked against.
    hint : str
        What to do about an error.

    Raises
    ------
    SourceError
        If the file cannot be read.
    InvalidInput
        If it is no such mapping. It names the file, the line and the member.
    """
    import yaml

    text = _text(Path(path), hint)
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        reason = getattr(error, "problem", None) or " ".join(str(error).split())
        raise InvalidInput(f"{_place(path, mark)} is no YAML: {cut(reason, 200)}", hint=hint) from None
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{path} is no YAML: {cut(str(error), 200)}", hint=hint) from None
    if content is None:
        content = {}
    if not isinstance(content, Mapping):
        raise InvalidInput(f"{path}: needs names and values, not a {type(content).__name__}", hint=hint)
    try:
        return model.model_validate(dict(content))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        member = cut(".".join(str(each) for each in first["loc"])) or "the file"
        mark = _mark_of(yaml.compose(text, Loader=yaml.SafeLoader), first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        raise InvalidInput(f"{_place(path, mark)}: {member}: {message}", hint=hint) from None


def _text(path: Path, hint: str) -> str:
    try:
        if (size := path.stat().st_size) > MAX_BYTES:
            raise TooLarge(f"{path} has {size:,} bytes; the limit is {MAX_BYTES:,} bytes", hint=hint)
        return read_text(path)
    except UnicodeDecodeError:
        raise InvalidInput(f"{path} is no text in UTF-8", hint=hint) from None
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror or error}") from None


def _place(path: str | os.PathLike[str], mark: yaml.Mark | None) -> str:
    return str(path) if mark is None else f"{path}: line {mark.line + 1}"


def _mark_of(node: Any, location: Sequence[str | int]) -> yaml.Mark | None:
    """Where the member at a location stands, or the innermost mapping or list that lacks it."""
    mark = None if node is None else node.start_mark
    for part in location:
        pairs = node.value if isinstance(getattr(node, "value", None), list) else []
        if isinstance(part, int) and pairs and not isinstance(pairs[0], tuple):
            node = pairs[part] if part < len(pairs) else None
        else:
            held = [pair for pair in pairs if isinstance(pair, tuple) and pair[0].value == str(part)]
            node = held[0][1] if held else None
            if held:
                mark = held[0][0].start_mark
                continue
        if node is None:
            break
        mark = node.start_mark
    return mark
