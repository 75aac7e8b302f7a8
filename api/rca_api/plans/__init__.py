"""`/v1/plans`: what to do about a stored diagnosis, at which price."""
