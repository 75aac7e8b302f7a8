"""What each node was blamed for across jobs, and whether it is a lemon."""
