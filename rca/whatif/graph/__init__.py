"""The dependency graph of a job's operations and its replay."""
