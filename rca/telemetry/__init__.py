"""The telemetry window: types, validation, encodings and the signal catalogue."""
