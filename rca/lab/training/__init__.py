"""Learning: corpus, fitting, evaluation, tracking and the bundle that serving reads."""
