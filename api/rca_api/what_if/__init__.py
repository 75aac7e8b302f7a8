"""`/v1/what-if`: a window or an operation trace in, the cost of its stragglers out."""
