"""The offline guide: a scripted model that answers newcomers and drives the real tools."""
