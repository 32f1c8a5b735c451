"""What a user installs is what stands here: built, installed and imported as they would."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tomllib
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
NEEDS_EXTRA = {
    "budwood.trajectory_store.testing.postgres": "psycopg",
    "budwood.trainers.policy": "numpy",
    "budwood.trainers.weighted_sft": "torch",
}
"""Modules that only make sense with an extra, and what they may miss without it."""
NOT_ROOMS = {"budwood", "bench", "tests", "docs"}
ROOMS = sorted(
    path.parent.name for path in ROOT.glob("*/__init__.py") if path.parent.name not in NOT_ROOMS
)

IMPORT_ALL = """
import importlib, json, sys
sys.path.insert(0, sys.argv[1])
failed = {}
for name in json.loads(sys.argv[2]):
    try:
        importlib.import_module(name)
    except Exception as error:
        failed[name] = f"{type(error).__name__}: {error}"
import budwood
print(json.dumps({"failed": failed, "file": budwood.__file__, "loaded": sorted(sys.modules)}))
"""

# Stands for an environment without the named packages: importing one of them fails as if absent.
WITHOUT = """
import json, sys
absent = set(json.loads(sys.argv[3]))
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""


def run_python(code: str, *arguments: str) -> dict:
    command = [sys.executable, "-I", "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def install(wheel: Path, target: Path) -> None:
    uv = shutil.which("uv", path=str(ROOT / ".tools" / "uv" / "bin")) or shutil.which("uv")
    if uv:
        command = [uv, "pip", "install", "--offline", "--python", sys.executable]
    elif importlib.util.find_spec("pip"):
        command = [sys.executable, "-m", "pip", "install", "--no-index"]
    else:
        pytest.skip("neither uv nor pip is here to install a wheel with")
    command += ["--quiet", "--no-deps", "--target", str(target), str(wheel)]
    subprocess.run(command, check=True)


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel installed that was built from the sdist."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder / "dist")]
    done = subprocess.run([*command, str(ROOT)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [wheel] = (folder / "dist").glob("*.whl")
    install(wheel, folder / "site")
    return folder / "site"


@pytest.fixture(scope="session")
def module_names(installed: Path) -> list[str]:
    names = set()
    for path in (installed / "budwood").rglob("*.py"):
        parts = path.relative_to(installed).with_suffix("").parts
        # Alembic runs its environment script itself, with names that it alone provides.
        if parts[-2:] != ("migrations", "env"):
            names.add(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return sorted(names)


def test_the_wheel_from_the_sdist_has_all_that_the_checkout_has(installed: Path):
    here = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *ROOMS, "budwood"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if here.returncode:
        pytest.skip("not a git checkout")
    for line in here.stdout.splitlines():
        path = Path(line)
        if (ROOT / path).is_symlink() or not (ROOT / path).exists():
            continue
        packaged = path if path.parts[0] == "budwood" else Path("budwood") / path
        assert (installed / packaged).is_file(), f"{line} is not in the wheel"


def test_every_module_of_the_wheel_imports(installed: Path, module_names: list[str]):
    result = run_python(IMPORT_ALL, str(installed), json.dumps(module_names))
    assert result["failed"] == {}
    assert Path(result["file"]).is_relative_to(installed)


def test_every_module_imports_with_the_core_alone(installed: Path, module_names: list[str]):
    core = {line.partition("==")[0] for line in read_lock("core") if "==" in line}
    absent = [
        name
        for name, owners in packages_distributions().items()
        if not core & {normalised(owner) for owner in owners} and name != "budwood"
    ]
    assert "pytest" in absent
    result = run_python(
        WITHOUT + IMPORT_ALL, str(installed), json.dumps(module_names), json.dumps(absent)
    )
    excused = {
        module: f"ModuleNotFoundError: No module named '{missing}'"
        for module, missing in NEEDS_EXTRA.items()
    }
    assert {
        module: error for module, error in result["failed"].items() if excused.get(module) != error
    } == {}


def test_the_proxy_loads_nothing_heavy(installed: Path):
    rooms = ("proxy", "trajectory_store", "harness_adapters", "trainers", "cli")
    names = [f"budwood.{room}" for room in rooms]
    result = run_python(IMPORT_ALL, str(installed), json.dumps(names))
    assert result["failed"] == {}
    assert not {"torch", "trl", "transformers", "vllm", "kubernetes", "numpy"} & set(
        result["loaded"]
    )


def test_the_core_s_packages_take_less_than_100_mb():
    locked = re.findall(r"^([\w.-]+)==", (ROOT / "locks" / "core.txt").read_text(), re.MULTILINE)
    size = 0
    for name in locked:
        with suppress(PackageNotFoundError):  # what the lock names for other systems and versions
            files = [Path(str(file.locate())) for file in distribution(name).files or ()]
            size += sum(path.stat().st_size for path in files if path.suffix != ".pyc")
    assert 40e6 < size < 100e6


def test_the_command_answers_with_its_version():
    done = subprocess.run(
        [sys.executable, "-m", "budwood", "--version"], capture_output=True, text=True, check=True
    )
    assert re.fullmatch(r"budwood \d+\.\d+\.\d+\n", done.stdout)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_has_its_link_and_its_place_in_every_list(room: str):
    link = ROOT / "budwood" / room
    assert link.is_symlink()
    assert link.readlink() == Path("..") / room
    tools = PROJECT["tool"]
    assert room in tools["pyright"]["include"]
    assert f"budwood/{room}" in tools["ruff"]["extend-exclude"]
    assert room in tools["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"]
    contracts = tools["importlinter"]["contracts"]
    assert any(f"budwood.{room}" in " ".join(each.get("layers", [])) for each in contracts)
    assert any(room in each.get("forbidden_modules", []) for each in contracts)


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def read_lock(name: str) -> list[str]:
    return (ROOT / "locks" / f"{name}.txt").read_text().splitlines()


def test_the_locks_are_made_from_what_stands_here():
    command = [sys.executable, str(ROOT / "locks" / "lock.py"), "check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("change", ["a dependency", "an extra", "a correction", "the linter"])
def test_a_lock_is_stale_when_what_it_was_made_from_changed(tmp_path: Path, change: str):
    shutil.copytree(ROOT / "locks", tmp_path / "locks")
    shutil.copytree(ROOT / "harness_adapters" / "locks", tmp_path / "harness_adapters" / "locks")
    text = (ROOT / "pyproject.toml").read_text()
    old, new = {
        "a dependency": ('"orjson>=', '"orjson>=1,>='),
        "an extra": ('"psycopg[binary]>=', '"psycopg[binary]>=1,>='),
        "a correction": ("'einops',", "'einops>=0',"),
        "the linter": ("line-length = ", "indent-width = 4\nline-length = "),
    }[change]
    assert old in text
    (tmp_path / "pyproject.toml").write_text(text.replace(old, new))
    command = [sys.executable, str(tmp_path / "locks" / "lock.py"), "check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    stale = set(re.findall(r"locks/([\w.-]+)\.txt", done.stderr))
    expected = {
        "a dependency": {"core", "light", "full"},
        "an extra": {"light", "full"},
        "a correction": {"full"},
        "the linter": set(),
    }[change]
    assert stale == expected
    assert done.returncode == (1 if expected else 0)


def test_every_locked_package_has_its_hashes_and_no_address():
    folders = [ROOT / "locks", ROOT / "harness_adapters" / "locks"]
    for path in (path for folder in folders for path in folder.glob("*.txt")):
        entries = path.read_text().replace("\\\n", "").splitlines()
        for entry in entries:
            if entry and not entry.startswith("#"):
                assert re.match(r"^[\w.-]+==\S+( ;[^#]*?)?\s+--hash=sha256:", entry), entry[:80]
    for package in json.loads((ROOT / "harness_adapters/locks/pi/package-lock.json").read_text())[
        "packages"
    ].values():
        assert "resolved" not in package
    for path in (path for folder in folders for path in folder.rglob("*")):
        if path.suffix in {".txt", ".json"}:
            assert "://" not in path.read_text(), path


def test_no_file_names_a_registry_or_a_folder_outside():
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if listed.returncode:
        pytest.skip("not a git checkout")
    hosts = ["py" + "pi.org", "python" + "hosted", "npm" + "js.org", "npm" + "js.com"]
    hosts += ["py" + "torch.org/whl", "proxy.gol" + "ang.org", "crates" + ".io", "deb.deb" + "ian"]
    outside = ["../sha" + "red", "/work/sha" + "red", "/work/ma" + "in"]
    banned = re.compile("|".join(map(re.escape, hosts + outside)).encode())
    found = []
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if path.is_file() and not path.is_symlink():
            found += [f"{name}: {match.decode()}" for match in banned.findall(path.read_bytes())]
    assert found == []
