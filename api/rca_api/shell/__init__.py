"""Below every resource of the service: the app, its state, requests, settings, security, storage."""
