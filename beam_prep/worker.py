"""A worker process of the local runner: Beam's own, with nothing but errors on the screen."""

import logging

if __name__ == "__main__":
    # Before Beam is imported: it adds a handler that shows everything, unless there is one.
    handler = logging.StreamHandler()
    handler.setLevel(logging.ERROR)
    logging.getLogger().addHandler(handler)

    from apache_beam.runners.worker import sdk_worker_main

    sdk_worker_main.main(None)
