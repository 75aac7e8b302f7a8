"""`/v1/runbooks`: what to do about a cause, with commands to copy."""
