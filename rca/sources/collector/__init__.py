"""Files of `rca.collect`."""
