"""Who may do what: scopes, keys, tokens."""
