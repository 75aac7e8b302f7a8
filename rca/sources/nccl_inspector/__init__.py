"""NCCL Inspector: files of the profiler plugin of NCCL, with each finished collective of a process."""

from rca.sources.nccl_inspector.window import SOURCE as SOURCE
