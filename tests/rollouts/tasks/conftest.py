"""A small sound task to break and to grade, and sandboxes to do it in."""

from pathlib import Path

import pytest

from budwood.rollouts.sandbox_place import places_of
from budwood.sandbox import LocalSettings, backend_named

FILES = {
    "task.toml": '[task]\nname = "test/hello"\n\n[metadata.budwood]\nlocal = true\n',
    "instruction.md": "Write hello into out.txt.\n",
    "environment/files/in.txt": "hello\n",
    "tests/test.sh": (
        "#!/bin/sh\n"
        'if [ "$(cat /app/out.txt)" = hello ]; then echo 1; else echo 0; fi'
        " > /logs/verifier/reward.txt\n"
    ),
    "solution/solve.sh": "#!/bin/sh\ncp in.txt out.txt\n",
}


@pytest.fixture
def make_task(tmp_path):
    """Return a function that writes a task folder: the sound one, with changes (None: no file)."""

    def make(changes: dict[str, str | bytes | None] | None = None, name: str = "hello") -> Path:
        folder = tmp_path / name
        for path, content in {**FILES, **(changes or {})}.items():
            if content is None:
                continue
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content.encode() if isinstance(content, str) else content)
        return folder

    return make


@pytest.fixture
async def open_place(namespaces, tmp_path):
    """The function that opens a place: a fresh local sandbox."""
    settings = LocalSettings(root=tmp_path / "sandboxes")
    async with backend_named("local", settings) as backend:
        yield places_of(backend)
