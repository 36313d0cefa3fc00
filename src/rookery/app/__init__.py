"""The composition root: settings in, a running replica out. Every part is built and wired here and nowhere else."""
