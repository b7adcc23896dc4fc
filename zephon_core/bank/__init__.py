"""The feature bank."""
