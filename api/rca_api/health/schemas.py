"""Answers of the probes."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from rca.diagnosis.result import ModelVersion


class Alive(BaseModel):
    """The process answers."""

    status: Literal["ok"] = "ok"


class Check(BaseModel):
    """One thing that has to work before a diagnosis can be made."""

    name: Literal["model", "pool", "database"]
    ready: bool
    detail: str = Field(description="How it is, or why it is not ready.")
    code: str | None = Field(None, description="Problem code that callers get meanwhile.")


class Ready(BaseModel):
    """The service can diagnose, with this model."""

    status: Literal["ready"] = "ready"
    model: ModelVersion
    checks: list[Check]
