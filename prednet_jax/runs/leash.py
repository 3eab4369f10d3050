"""Runs a script in a process that ends when its parent process ends.

    python leash.py PROCESSORS SCRIPT [ARGUMENTS...]

PROCESSORS are the numbers of the processors that it may use, such as 0,3. An empty text
means all. Standard input is a pipe whose other end only the parent holds. The kernel
closes it when the parent ends, also by SIGKILL; a thread that waits for this then kills
the process. This file runs before everything else and imports the standard library
only.
"""

import os
import runpy
import signal
import sys
import threading


def _end_with_the_parent(pipe: int) -> None:
    while os.read(pipe, 1):
        pass
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Ties this process to its parent and becomes the script."""
    processors, script, *arguments = sys.argv[1:]
    # This comes first, because threads that start later inherit the mask.
    if processors:
        os.sched_setaffinity(0, {int(number) for number in processors.split(",")})
    pipe = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    threading.Thread(target=_end_with_the_parent, args=(pipe,), daemon=True).start()
    sys.argv = [script, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
