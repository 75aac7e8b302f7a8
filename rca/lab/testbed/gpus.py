"""GPUs of this machine that both CUDA and NVML know.

A separate process queries them: after CUDA is initialized, forked processes cannot use it.
"""

from __future__ import annotations

import os
import select
import tempfile
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from rca.errors import RcaError
from rca.lab.testbed.names import PREFIX
from rca.lab.testbed.probe import installed
from rca.lab.testbed.process import ProcessTable

_QUERY_TIMEOUT_SECONDS = 60.0
_INSTALL = "pip install 'straggler-rca[testbed]', with a CUDA build of PyTorch"


class GpuMissing(RcaError):
    """The machine lacks what a job with GPU ranks needs."""

    code = "testbed-gpu"


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    Attributes
    ----------
    index : int
        CUDA's number of it, which may differ from NVML's.
    uuid : str
        NVML finds the GPU by it.
    """

    index: int
    uuid: str
    name: str
    driver: str

    @property
    def torch_device(self) -> str:
        """PyTorch's name of it."""
        return f"cuda:{self.index}"


def find_gpus() -> tuple[Gpu, ...]:
    """All GPUs that PyTorch can use and NVML can observe; at least one.

    Raises
    ------
    GpuMissing
        With the first thing that is missing.
    """
    for module, what in (("torch", "PyTorch"), ("pynvml", "NVML's Python binding (nvidia-ml-py)")):
        if not installed(module):
            raise GpuMissing(f"{what} is not installed", hint=_INSTALL)
    answer = _query_in_child()
    if "lacking" in answer:
        raise GpuMissing(answer["lacking"], hint=answer.get("hint", "does `nvidia-smi` list a GPU?"))
    return tuple(Gpu(**each) for each in answer["gpus"])


def require_gpus(count: int) -> tuple[Gpu, ...]:
    """The first `count` GPUs.

    Raises
    ------
    GpuMissing
        If there are fewer.
    """
    try:
        found = find_gpus()
    except GpuMissing as error:
        raise GpuMissing(f"a job with GPU ranks cannot run here: {error.message}", hint=error.hint) from None
    if len(found) < count:
        raise GpuMissing(f"the job needs {count} GPUs, this machine has {len(found)}")
    return found[:count]


def query_gpus() -> dict[str, Any]:
    """Initialize CUDA and NVML in this process; return the GPUs, or what is missing."""
    import pynvml
    import torch

    if torch.version.cuda is None:
        return {"lacking": f"PyTorch {torch.__version__} was built without CUDA", "hint": _INSTALL}
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return {"lacking": f"no usable GPU: {str(error).split('. ')[0]}"}
    try:
        pynvml.nvmlInit()
        driver = pynvml.nvmlSystemGetDriverVersion()
        held = [_described(pynvml, torch, index) for index in range(torch.cuda.device_count())]
    except pynvml.NVMLError as error:
        return {"lacking": f"NVML does not answer: {error}"}
    return {"gpus": [each | {"driver": driver} for each in held]}


def _described(nvml: Any, torch: Any, index: int) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(index)
    uuid = f"GPU-{properties.uuid}"
    nvml.nvmlDeviceGetHandleByUUID(uuid)  # raises where NVML sees another machine than CUDA
    return {"index": index, "uuid": uuid, "name": properties.name}


def _query_in_child() -> dict[str, Any]:
    """Result of `query_gpus` in a forked process."""
    reader, writer = os.pipe()
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}-") as folder, os.fdopen(reader, "rb") as pipe:
        log = Path(folder) / "log"
        process_table = ProcessTable(log)
        child = process_table.spawn("gpus", partial(_write_answer, writer))
        os.close(writer)
        try:
            ready, _, _ = select.select([reader], [], [], _QUERY_TIMEOUT_SECONDS)
            output = pipe.read() if ready else b""
        finally:
            process_table.end(child)
        if not output:
            tail = log.read_text(encoding="utf-8").strip().splitlines()[-1:] if log.exists() else []
            return {"lacking": f"CUDA does not start: {tail[0] if tail else 'no answer'}"}
    answer: dict[str, Any] = orjson.loads(output)
    return answer


def _write_answer(writer: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        os.write(writer, orjson.dumps(query_gpus()))
