"""The only package with SQL, and the only writer of chat state.

Read `machine` (the transitions) and `db/migrations/0001_core.sql` (the tables and their triggers) first.
"""
