"""What the end of a process that others wait for does, and what it leaves out."""

import subprocess
import sys

ENDING = """
import atexit, sys, threading
from hpckit.system.process_end import end_process
atexit.register(print, "registered")
threading.Thread(target=threading.Event().wait).start()
sys.stdout.write("unflushed, ")
end_process(75)
"""


def test_output_and_registered_functions_are_kept_and_no_thread_is_waited_for() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDING], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (75, "unflushed, registered\n", "")
