"""What producers write, read into windows: one module per source, one line in the registry."""
