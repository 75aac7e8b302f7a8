"""Compares simulated windows with real captures: effect sizes, and a real-or-simulated discriminator."""
