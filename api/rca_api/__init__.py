"""The HTTP service around `rca.diagnose`; `rca_api.app.create_app` builds it."""
