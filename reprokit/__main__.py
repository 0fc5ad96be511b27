"""`python -m reprokit` is the command `reprokit`."""

from reprokit.cli import main

if __name__ == "__main__":
    main()
