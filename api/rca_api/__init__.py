"""The HTTP service around `rca.diagnose`; `rca_api.shell.app.create_app` builds it."""
