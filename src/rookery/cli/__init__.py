"""The command line: what `rookery` does when it is typed.

It may import everything below it, but late: `rookery --help` must not load the database driver or the web
framework. Start with `main` (arguments, exit codes, dispatch) and `output` (what people and programs get to read).
"""
