"""Prefect flows: what runs, in which order."""
