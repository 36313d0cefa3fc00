"""The command line `rookery`.

It may import every other package, but only when a command needs it: `rookery --help` must not load the database driver
or the web framework. Start with `main` (arguments, exit codes, dispatch) and `output` (text for users, JSON for
programs).
"""
