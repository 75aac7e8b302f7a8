"""CPU work outside the event loop: a pool of warm processes, with a deadline for each task."""
