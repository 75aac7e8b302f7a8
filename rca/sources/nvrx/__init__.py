"""Reports of the NVIDIA Resiliency Extension's straggler detection: scores of ranks and their sections."""

from rca.sources.nvrx.window import SOURCE as SOURCE
