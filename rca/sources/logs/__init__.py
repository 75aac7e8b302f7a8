"""Lines of text logs: their search, their parts and the events that they tell of."""
