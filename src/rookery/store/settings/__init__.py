"""Runtime settings, in groups, and the values that the operator has locked."""
