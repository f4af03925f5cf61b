"""`python -m forescribe` and the script `forescribe`: Ctrl-C is answered in one line from the start.

Imports nothing by itself: importing the commands takes half a second, or several on a busy machine.
"""

import sys


def main() -> None:
    """Run the command, see `cli.main.main`."""
    try:
        from .cli.main import main as command
    except KeyboardInterrupt:
        sys.stderr.write("forescribe: interrupted\n")
        sys.exit(130)
    command()


if __name__ == "__main__":
    main()
