"""`/v1/models`: the versions of the model, and which of them answers."""
