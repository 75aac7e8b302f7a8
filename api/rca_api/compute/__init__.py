"""CPU work away from the event loop: a pool of warm processes, each with a deadline for what it does."""
