"""Access to the database: pools, migrations, hints over LISTEN and NOTIFY, the embedded server."""
