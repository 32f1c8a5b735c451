"""The room imports without the heavy packages, and says which extra brings them."""

import subprocess
import sys

WITHOUT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "trl", "transformers", "numpy", "datasets"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
import budwood.trainers
print(budwood.trainers.advantages([1.0, 0.0]))
try:
    budwood.trainers.Policy
except ImportError as error:
    print(type(error).__name__, error)
"""


def test_without_the_extra_the_room_imports_and_the_error_names_it():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    numbers, error = done.stdout.splitlines()
    assert numbers.startswith("[0.70")
    assert error.startswith("MissingExtra training needs ")
    assert "pip install 'budwood[train]'" in error


def test_importing_the_room_loads_nothing_heavy():
    code = "import sys, budwood.trainers; print({'torch', 'trl', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
