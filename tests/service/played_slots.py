"""Places of a pool that simulate their processes."""

from __future__ import annotations

import asyncio
from typing import Any

from rca.deadline import Deadline
from rca.diagnosis.result import ModelVersion
from rca_api.shell.observability.tracing import Timed
from rca_api.shell.processes.bundles import BundleRef
from rca_api.shell.processes.child_process import Reply
from rca_api.shell.processes.process import ProcessReport, Setup
from rca_api.shell.processes.slot import Slot

MODEL = ModelVersion(name="baseline", version="1", sha256="a" * 64)
DONE = Reply("done", seconds=0.25, stages={"diagnose": Timed(1.7e9, 0.25)})


class PlayedSlot(Slot):
    """A slot with scripted answers, which answers at once when the script is over."""

    def __init__(self, *script: Reply | BaseException) -> None:
        super().__init__()
        self.script = list(script)

    async def start(self, setup: Any) -> ProcessReport:
        self.report, self.tasks = ProcessReport(1, MODEL, None), 0
        return self.report

    async def run(self, task: Any, arguments: Any, deadline: Deadline) -> Reply:
        self.tasks += 1
        await asyncio.sleep(0)
        told = self.script.pop(0) if self.script else DONE
        if isinstance(told, BaseException):
            raise told
        return told

    async def stop(self) -> None:
        self.report = None


SETUP = Setup(BundleRef(None), None, "", "info")
