"""Job metadata of an operation trace: sizes of the parallel dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rca.errors import InvalidTrace
from rca.telemetry.job import Job


class TraceMeta(BaseModel):
    """Sizes as the public metadata files name them; None where the producer did not say.

    Attributes
    ----------
    dp_size, pp_size, tp_size, dsp_size, vpp_size : int or None
        Data, pipeline, tensor, context ("distributed sequence") and virtual pipeline sizes.
    world_size : int or None
        GPUs of the job, for GPU hours.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, coerce_numbers_to_str=True)

    trial_name: str | None = None
    run_id: int | str | None = None
    dp_size: int | None = Field(default=None, ge=1)
    pp_size: int | None = Field(default=None, ge=1)
    tp_size: int | None = Field(default=None, ge=1)
    dsp_size: int | None = Field(default=None, ge=1)
    vpp_size: int | None = Field(default=None, ge=1)
    world_size: int | None = Field(default=None, ge=1)

    @classmethod
    def of(cls, source: TraceMeta | Mapping[str, Any] | str | PathLike[str] | None) -> TraceMeta:
        """From a mapping, a YAML file or nothing.

        Raises
        ------
        InvalidTrace
            If the file cannot be read or a size is not a positive integer.
        """
        if isinstance(source, TraceMeta):
            return source
        if source is None:
            return cls()
        fields = source if isinstance(source, Mapping) else _read_yaml(Path(source))
        try:
            return cls.model_validate(dict(fields))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            field = ".".join(str(part) for part in first["loc"])
            raise InvalidTrace(f"job metadata: {field}: {first['msg']}") from error

    @classmethod
    def of_job(cls, job: Job) -> TraceMeta:
        """From a window's job."""
        sizes = job.parallelism
        if sizes is None:
            return cls(trial_name=job.job_id, world_size=job.world_size)
        return cls(
            trial_name=job.job_id,
            dp_size=sizes.data,
            pp_size=sizes.pipeline,
            tp_size=sizes.tensor,
            dsp_size=sizes.context,
            vpp_size=sizes.virtual_pipeline,
            world_size=job.world_size,
        )


def _read_yaml(path: Path) -> Mapping[str, Any]:
    import yaml

    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidTrace(f"job metadata {path}: {error.strerror or error}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidTrace(f"job metadata {path}: not YAML: {error}") from error
    if not isinstance(loaded, Mapping):
        raise InvalidTrace(f"job metadata {path}: expected a mapping of sizes")
    return loaded
