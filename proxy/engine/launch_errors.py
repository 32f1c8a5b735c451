"""Errors of starting an engine, and what its log's last words mean."""

from collections.abc import Iterable


class LaunchError(RuntimeError):
    """The engine did not start; the message says why and what to do."""


HINTS: tuple[tuple[str, str], ...] = (
    ("invalid tool call parser", "choose another with --tool-parser (the log lists them)"),
    ("Reasoning parser", "choose another with --reasoning-parser"),
    ("Address already in use", "another server has this port: choose one with --port"),
    ("CUDA out of memory", "the model does not fit this GPU: a smaller one, or -- --max-model-len"),
    ("No space left on device", "the disk is full"),
    ("is not a local folder and is not a valid model identifier", "no model of this name is known"),
    ("Can't load the configuration", "the folder holds no model: config.json is missing"),
    ("outgoing traffic has been disabled", "the model's files are not on this machine"),
    ("libcuda.so", "no NVIDIA driver is found: add --cpu"),
    ("Failed to infer device type", "no GPU is found: add --cpu"),
    ("unrecognized arguments", "this vLLM does not know a flag: see the last lines"),
    ("larger than the derived max_model_len", "ask for a smaller --max-model-len"),
)
"""A part of the log → what to do."""


def hint(lines: Iterable[str]) -> str | None:
    """Return what to do about an engine whose log ends like this."""
    text = "\n".join(lines)
    return next((advice for part, advice in HINTS if part in text), None)
