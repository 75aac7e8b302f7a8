from played_cluster import cluster

__all__ = ["cluster"]
