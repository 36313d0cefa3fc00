"""PostgreSQL: the only package with SQL, and the only writer of chat state.

It may import `rookery.domain` and the modules below it. Start with `machine` (the transitions applied) and
`migrations/0001_core.sql` (the tables and the triggers that guard them).
"""
