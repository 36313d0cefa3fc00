"""Accounts: users, credentials, sessions, tokens, preferences, and the audit log."""
