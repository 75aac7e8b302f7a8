"""Actions taken on incidents: the gain that a diagnosis predicted, and the gain that later windows show."""
