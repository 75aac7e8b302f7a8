"""`/healthz`, `/readyz` and `/metrics`: what an operator asks the service about itself."""
