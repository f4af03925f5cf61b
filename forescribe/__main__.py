"""`python -m forescribe` runs the command."""

from .cli.main import main

if __name__ == "__main__":
    main()
