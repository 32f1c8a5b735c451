"""`python -m budwood.harness_adapters.react TASK`: the reference harness, run by hand."""

import sys

from .agent import main

if __name__ == "__main__":
    sys.exit(main())
