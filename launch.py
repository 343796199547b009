"""Start a run, or go on with it: `python launch.py [GROUP=OPTION ...] [KEY=VALUE ...]`."""

import gc
import signal
import sys

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})  # until there is a run to preempt
gc.disable()  # what is imported and composed stays: to look for cycles in it is a tenth of the time

from hpckit.submit.composition.composition_process import begin_composition  # noqa: E402

if __name__ == "__main__":
    try:
        composition = begin_composition(sys.argv[1:])
        from hpckit.submit.launch_command import run_as_program  # while the config is composed

        run_as_program(composition)
    except KeyboardInterrupt:  # during the imports
        sys.exit(128 + signal.SIGINT)
    except ModuleNotFoundError as error:
        from hpckit.distribution import describe_missing

        if (said := describe_missing(error)) is None:
            raise
        sys.exit(f"error: {said}; or use another Python, such as .venv/bin/python")
