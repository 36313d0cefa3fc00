"""Users, logins, sessions, tokens, preferences, and the audit log."""
