"""Imported by the server of jobs: jobs wait for a store for a second, not for a minute."""

import boto3  # noqa: F401  (once for all jobs)
from apache_beam.io.gcp import gcsio  # noqa: F401

from beam_prep import pipeline  # noqa: F401
from beam_prep.storage import stores

stores.RETRY_SECONDS, stores.PAUSE, stores.LONGEST_PAUSE = 1.0, 0.02, 0.2
