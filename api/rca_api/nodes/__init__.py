"""Blames of each node across jobs, and the probability that the node is a lemon."""
