"""Storage of the service: one SQL database and one folder of windows."""
