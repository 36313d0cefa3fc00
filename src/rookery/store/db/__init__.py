"""The database itself: pools, migrations, hints over LISTEN and NOTIFY, the embedded server."""
