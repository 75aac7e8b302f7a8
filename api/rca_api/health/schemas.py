"""Answers of the probes."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from rca.diagnosis.result import ModelVersion


class Alive(BaseModel):
    """The process answers."""

    status: Literal["ok"] = "ok"


class Ready(BaseModel):
    """The service can diagnose, with this model."""

    status: Literal["ready"] = "ready"
    model: ModelVersion
