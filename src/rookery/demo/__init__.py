"""The offline guide: a scripted model that answers new users and drives the real tools."""
