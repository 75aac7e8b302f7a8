"""How models are made and judged: simulation, real captures, training and evaluation."""
