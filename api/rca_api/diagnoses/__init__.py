"""`/v1/diagnoses`: a telemetry window in, a diagnosis out."""
