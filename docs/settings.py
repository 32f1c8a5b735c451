"""Write `settings.md`, the page of all settings, from the models that the command reads.

python docs/settings.py            writes the page
python docs/settings.py --check    fails where it is stale
"""

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from budwood.cli.settings import PREFIX, ROOMS, default_store

PAGE = Path(__file__).with_name("settings.md")
HEAD = """\
# Settings

<!-- Made by `python docs/settings.py`; a test fails when it is stale. -->

For each setting the first of these counts:

1. the command line, where a command has an option for it;
2. an environment variable, `BUDWOOD_<ROOM>__<FIELD>`; one more `__` for each level below;
3. `budwood.toml` in the working directory, or the file that `BUDWOOD_CONFIG` names; `record`,
   `proxy` and `config` also take `--config FILE`;
4. the default.

Lists and tables in variables are written as JSON: `BUDWOOD_STORE__SECRETS='["a-long-value"]'`.
Engine URLs may also be separated by commas. A name that no model knows is an error.
`budwood config` prints what counts and where it came from, secrets masked.

```toml
[store]
url = "runs.db"

[proxy]
port = 8800
sampling = { temperature = 0.7 }

[proxy.engine]
urls = ["http://127.0.0.1:8000", "http://127.0.0.1:8001"]
```
"""


def docstrings(model: type[BaseModel]) -> dict[str, str]:
    """Return the text under each field of a model, on one line."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for before, after in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(before, ast.AnnAssign) and isinstance(after, ast.Expr):
            if isinstance(before.target, ast.Name) and isinstance(after.value, ast.Constant):
                found[before.target.id] = " ".join(str(after.value.value).split())
    return found


def rows(prefix: str, model: type[BaseModel]) -> Iterator[tuple[str, str, str]]:
    """Yield dotted name, default and meaning of every setting."""
    texts = docstrings(model)
    for name, field in model.model_fields.items():
        dotted, kind = f"{prefix}.{name}", field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from rows(dotted, kind)
        else:
            yield (
                dotted,
                shown(field.get_default(call_default_factory=True)),
                meaning(texts, field, name),
            )


def meaning(texts: dict[str, str], field: FieldInfo, name: str) -> str:
    """Return a field's text, and the range where it has one."""
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    bounds = [
        f"{sign} {getattr(rule, attribute)}"
        for rule in field.metadata
        for attribute, sign in signs.items()
        if hasattr(rule, attribute)
    ]
    return texts[name] + (f" ({', '.join(bounds)})" if bounds else "")


def shown(value: Any) -> str:
    """Return a default as a reader would write it."""
    if value is None:
        return "none"
    if value == default_store():
        return "`~/.local/share/budwood/budwood.db`"
    if isinstance(value, SecretStr):
        return "`****`"
    if isinstance(value, tuple | list):
        return "`[" + ", ".join(f'"{item}"' for item in value) + "]`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value}`"


def names() -> list[str]:
    """Return the dotted name of every setting."""
    return [name for room, model in models() for name, _, _ in rows(room, model)]


def models() -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield each room with its model."""
    for room, where in ROOMS.items():
        module, _, name = where.partition(":")
        yield room, getattr(import_module(module), name)


def page() -> str:
    """Return the whole page."""
    parts = [HEAD]
    for room, model in models():
        parts.append(f"\n## {room}\n\n{(model.__doc__ or '').strip()}\n\n")
        parts.append("| setting | variable | default | meaning |\n|---|---|---|---|\n")
        for dotted, default, text in rows(room, model):
            variable = PREFIX + dotted.upper().replace(".", "__")
            parts.append(f"| `{dotted}` | `{variable}` | {default} | {text} |\n")
    return "".join(parts)


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        fresh = PAGE.exists() and PAGE.read_text("utf-8") == page()
        print("settings.md is up to date" if fresh else "stale: run python docs/settings.py")
        sys.exit(0 if fresh else 1)
    PAGE.write_text(page(), "utf-8")
