"""Shards of the data that workers lease from a server, each sample exactly once."""
