"""The offline guide: a script of the scripted model that answers new users and calls real tools."""
