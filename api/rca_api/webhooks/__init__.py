"""Webhooks: signed messages about incidents to other systems, retried until delivered or given up."""
