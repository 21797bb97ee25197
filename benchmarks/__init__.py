"""Measurements of slurmmesh beside its peers; see README.md here."""
