"""`python -m forescribe` and the script `forescribe`: Ctrl-C is answered in one line from the start, and a
command's process ends at once.

Imports nothing by itself: importing the commands takes half a second, or several on a busy machine.
"""

import atexit
import os
import sys
import threading


def main() -> None:
    """Run the command, see `cli.main.main`."""
    try:
        from .cli.main import main as command
    except KeyboardInterrupt:
        sys.stderr.write("forescribe: interrupted\n")
        sys.exit(130)
    try:
        command()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            leave(end.code or 0)
        raise
    leave(0)


def leave(status: int) -> None:
    """End the process without taking torch and the models apart, which takes 0.5 s of a run of 3.5. What was
    registered for the end of the process runs, and what was written is flushed. Returns, for Python's own
    end, where torch is not loaded, where threads are still at work, and where the output is gone."""
    others = (t for t in threading.enumerate() if t is not threading.current_thread())
    if "torch" not in sys.modules or not all(thread.daemon for thread in others):
        return
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        return
    os._exit(status)


if __name__ == "__main__":
    main()
