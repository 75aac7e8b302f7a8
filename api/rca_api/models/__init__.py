"""`/v1/models`: versions of the model, and which version answers."""
