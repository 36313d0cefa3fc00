"""The composition root: builds a running replica from the settings. Components are built and wired only here."""
