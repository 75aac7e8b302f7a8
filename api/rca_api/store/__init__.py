"""What the service remembers: one SQL database, one folder of windows."""
