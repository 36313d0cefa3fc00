"""One module per subject, each with a function that makes its router from what it needs."""
