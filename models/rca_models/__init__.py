"""The trained baseline bundle, shipped as package data; `rca.diagnosis.bundle.baseline` reads it."""
