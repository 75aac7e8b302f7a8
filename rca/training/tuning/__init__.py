"""Search of LightGBM's settings under nested, grouped cross-validation, and what it is honestly worth."""
