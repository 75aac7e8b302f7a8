"""Settings of the service, from the environment and a file, and the checks before a start."""
