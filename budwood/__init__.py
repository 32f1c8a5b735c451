"""Budwood records what an agent harness and its model say to each other, exactly, to train on."""

__version__ = "0.1.0"

__all__ = ["__version__"]
