"""The embedded PostgreSQL server in a data directory: set-up, start, stop. Read `server` first."""
