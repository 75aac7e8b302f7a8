"""Logs with messages of the NCCL watchdog and of launchers."""
