"""NCCL Inspector: files of the profiler plugin of NCCL, with each finished collective of a process."""

from rca.telemetry.sources.nccl_inspector.window import SOURCE as SOURCE
