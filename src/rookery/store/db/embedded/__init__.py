"""The embedded PostgreSQL server: set up, started or adopted, and stopped, below one data directory.

It owns everything between the wheel's binaries and a database that answers. Start with `server`.
"""
