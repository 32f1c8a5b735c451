"""`python -m budwood` is the command `budwood`."""

from budwood.cli import main

if __name__ == "__main__":
    main()
