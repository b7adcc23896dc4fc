"""The library of zephon-flows: frozen features and token accounting for language-model training."""

__all__ = ["__version__"]

__version__ = "0.1.0"
