"""Operation traces: reading, checks, repair and shapes of steps."""
