"""The base of records that are checked when they are made and never change afterwards."""

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """A record without unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)
