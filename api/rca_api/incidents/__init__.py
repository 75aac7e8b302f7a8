"""What a job suffered from, over many diagnoses: opened, cause changed, resolved."""
