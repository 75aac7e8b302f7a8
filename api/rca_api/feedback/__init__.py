"""Feedback: people confirm or correct diagnoses. It is kept for ever and used in training."""
