"""What people say about a diagnosis: confirmed or corrected, kept for ever, learned from."""
