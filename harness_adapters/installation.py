"""Where a harness is on this host, and how a sandbox gets to see it.

An installation is a folder made by `budwood harness install` or `make harnesses`: a virtual
environment, or one with Node and a `node_modules`. Into the sandbox go only the parts that run,
read-only, at paths that are the same on every machine, `/opt/harness/NAME/...`: some harnesses
tell the model where they are, and prompts must not depend on whose machine it is. Nothing else of
the folder's parents becomes visible.

A virtual environment does not work at another path: its interpreter is a link to one outside, its
scripts name absolute paths. So the sandbox gets `site-packages` and the interpreter below the
environment, and the command says where the packages are. Unlike `PYTHONPATH` that is not inherited
by the commands that an agent runs.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import distributions
from pathlib import Path, PurePosixPath

from budwood.sandbox import Bind

from .errors import NotInstalled

INSIDE = "/opt/harness"
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64")
"""Folders of the host that every sandbox sees at the same path."""
START = (
    "import os, runpy, site, sys; os.environ.pop('LD_LIBRARY_PATH', None); site.setquit(); "
    "site.addsitedir(sys.argv.pop(1)); del sys.argv[0]; "
    "(runpy.run_path if '/' in sys.argv[0] else runpy.run_module)"
    "(sys.argv[0], run_name='__main__')"
)
"""What an interpreter runs: packages' folder, then a module's name or a script's path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """A harness as a sandbox sees it."""

    harness: str
    version: str
    folder: Path
    """Where it is on this host."""
    binds: tuple[Bind, ...]
    """For `Spec.binds`."""
    command: tuple[str, ...]
    """The words that start it inside, before its arguments."""
    env: dict[str, str] = field(default_factory=dict[str, str])
    """What these words need."""
    packages: str
    """The folder inside where its packages are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonProgram:
    """A program in a virtual environment."""

    distribution: str
    """The package whose version is the harness's, as an index names it."""
    module: str = ""
    """What `python -m` would run."""
    script: Path | None = None
    """Instead: a file of ours that runs there."""
    script_version: str = ""

    def found_in(self, folder: Path, harness: str) -> Installation:
        """Return what is in an environment; raises NotInstalled with what is missing."""
        here = f"{INSIDE}/{harness}"
        site = next(iter(sorted(folder.glob("lib/python3*/site-packages"))), None)
        if site is None:
            raise NotInstalled(harness, f"{folder} is no virtual environment")
        version = _version(site, self.distribution)
        if version is None:
            raise NotInstalled(harness, f"{self.distribution} is not in {site}")
        binds = [Bind(site, f"{here}/site-packages")]
        python, env = _interpreter(folder, harness, site.parent.name, binds)
        runs = self.module
        if self.script is not None:
            runs = f"{here}/{self.script.name}"
            binds.append(Bind(self.script, runs))
        packages = f"{here}/site-packages"
        if self.script is not None:
            version = f"{self.script_version}+{self.distribution}.{version}"
        return Installation(
            harness=harness,
            version=version,
            folder=folder,
            binds=tuple(binds),
            command=(python, "-I", "-S", "-B", "-X", "utf8", "-c", START, packages, runs),
            env=env,
            packages=packages,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeProgram:
    """A program in a `node_modules`, and the Node that runs it."""

    package: str
    program: str
    """Its key in the package's `bin`."""

    def found_in(self, folder: Path, harness: str) -> Installation:
        """Return what is in a folder; raises NotInstalled with what is missing."""
        here = f"{INSIDE}/{harness}"
        for modules in (folder / "node_modules", folder / "lib" / "node_modules"):
            described = modules / self.package / "package.json"
            if described.is_file():
                break
        else:
            raise NotInstalled(harness, f"{self.package} is not in {folder}/node_modules")
        package = json.loads(described.read_text("utf-8"))
        entry = PurePosixPath(self.package, package["bin"][self.program])
        node = _node(folder)
        if node is None:
            raise NotInstalled(harness, f"no Node in {folder.parent}/bin, {folder}/bin nor on PATH")
        binds = [Bind(modules, f"{here}/node_modules")]
        program = str(node)
        if not _is_systems(node):
            program = f"{here}/bin/node"
            binds.append(Bind(node, program))
        return Installation(
            harness=harness,
            version=package["version"],
            folder=folder,
            binds=tuple(binds),
            command=(program, f"{here}/node_modules/{entry}"),
            packages=f"{here}/node_modules",
        )


Program = PythonProgram | NodeProgram
PLACES = {"mini-swe-agent": "mini-swe-agent", "pi": "node/pi", "react": "react"}
"""Harness → its folder below a root of installations."""


def default_root() -> Path:
    """Return where `budwood harness install` puts things: `$XDG_DATA_HOME/budwood/harnesses`."""
    home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(home) / "budwood" / "harnesses"


def checkout() -> Path | None:
    """Return the folder of the checkout that this is run from, if it is run from one."""
    root = Path(__file__).resolve().parent.parent
    return root if (root / "locks" / "lock.py").is_file() else None


def roots() -> Iterator[Path]:
    """Yield where installations are looked for, in this order: the checkout's, then the user's."""
    root = checkout()
    if root is not None:
        yield root / ".envs"
    yield default_root()


def find_installation(harness: str, program: Program, folder: Path | None = None) -> Installation:
    """Return the installation in `folder`, else the first in `roots()`; raises NotInstalled."""
    if folder is not None:
        return program.found_in(folder.absolute(), harness)
    looked = [root / PLACES[harness] for root in roots()]
    for place in looked:
        if place.is_dir():
            return program.found_in(place, harness)
    raise NotInstalled(harness, f"not in {' nor in '.join(map(str, looked))}")


def _interpreter(
    folder: Path, harness: str, name: str, binds: list[Bind]
) -> tuple[str, dict[str, str]]:
    """Return the interpreter's path inside and its variables; adds what it needs to `binds`."""
    program = _base_program(folder, name)
    if program is None:
        raise NotInstalled(harness, f"the interpreter of {folder} is gone")
    if _is_systems(program):
        return str(program), {}
    prefix = program.parent.parent
    inside = f"{INSIDE}/{harness}/python"
    binds.append(Bind(prefix, inside))
    # One built with a shared library names that by its old path; START takes the variable away.
    shared = any(prefix.glob("lib/libpython3*.so*"))
    env = {"LD_LIBRARY_PATH": f"{inside}/lib"} if shared else {}
    return f"{inside}/{program.relative_to(prefix)}", env


def _base_program(folder: Path, name: str) -> Path | None:
    """Return the interpreter below a virtual environment; `name` is `python3.11` or so."""
    lines = (folder / "pyvenv.cfg").read_text("utf-8").splitlines()
    words = [line.partition("=") for line in lines]
    home = next((value.strip() for key, _, value in words if key.strip() == "home"), "")
    for program in (Path(home, name), folder / "bin" / "python"):
        if program.is_file():
            return program.resolve()
    return None


def _node(folder: Path) -> Path | None:
    for program in (folder.parent / "bin" / "node", folder / "bin" / "node"):
        if program.is_file():
            return program.resolve()
    found = shutil.which("node")
    return Path(found).resolve() if found else None


def _is_systems(program: Path) -> bool:
    return any(program.is_relative_to(folder) for folder in SYSTEM)


def _version(site: Path, distribution: str) -> str | None:
    for found in distributions(name=distribution, path=[str(site)]):
        return found.version
    return None
