"""What a model answers about causes, job sizes and jobs that it has never seen: fit anew, ask, compare."""
