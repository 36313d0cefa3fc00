"""Roles, scopes and rights, and the normal form of account names."""
