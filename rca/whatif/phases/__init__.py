"""What-if analysis of the phases of each step."""
