"""What Slack publishes about messages: members of blocks, and how long each may be."""

from __future__ import annotations

from typing import Any

#: Characters.
MESSAGE, HEADER, TEXT = 40_000, 150, 3000
BLOCKS, ELEMENTS = 50, 10


def refused(message: dict[str, Any]) -> list[str]:
    """Reasons why Slack would refuse a message of an incoming webhook; empty if it takes it."""
    reasons = []
    if not 1 <= len(message.get("text", "")) <= MESSAGE:
        reasons.append("text: needs 1 to 40,000 characters, for notifications")
    lists = [message.get("blocks", []), *(each["blocks"] for each in message.get("attachments", []))]
    if not any(lists):
        reasons.append("no blocks")
    for blocks in lists:
        if len(blocks) > BLOCKS:
            reasons.append(f"{len(blocks)} blocks in one list")
        reasons += [f"{block}: {reason}" for block in blocks for reason in _refused(block)]
    return reasons


def _refused(block: dict[str, Any]) -> list[str]:
    kind = block.get("type")
    if kind == "header":
        return [*_members(block, "text"), *_text(block["text"], {"plain_text"}, HEADER)]
    if kind == "section":
        return [*_members(block, "text"), *_text(block["text"], {"plain_text", "mrkdwn"}, TEXT)]
    if kind == "context":
        elements = block["elements"]
        many = [] if 1 <= len(elements) <= ELEMENTS else [f"{len(elements)} elements"]
        return [
            *_members(block, "elements"),
            *many,
            *(r for e in elements for r in _text(e, {"mrkdwn"}, TEXT)),
        ]
    return ["unknown type of block"]


def _members(block: dict[str, Any], *needed: str) -> list[str]:
    return [] if block.keys() == {"type", *needed} else ["other members than those of its type"]


def _text(text: dict[str, Any], kinds: set[str], most: int) -> list[str]:
    if text.keys() != {"type", "text"} or text["type"] not in kinds:
        return ["no text object"]
    return [] if 1 <= len(text["text"]) <= most else [f"{len(text['text'])} characters of at most {most}"]
