"""Prefect tasks: one step each, a thin name for what the core does."""
