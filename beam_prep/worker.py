"""A worker process of the local runner: Beam's own, silent, since the launcher reports what went wrong."""

import logging
import os
import sys

if __name__ == "__main__":
    # Before Beam is imported: it adds a handler that shows everything, unless there is one.
    logging.getLogger().addHandler(logging.NullHandler())
    # Beam prints tracebacks there too. What dies below Python still writes to the real one.
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115

    from apache_beam.runners.worker import sdk_worker_main

    sdk_worker_main.main(None)
