"""The Dataflow template runs this to launch a job: `beam-prep run`, with everything logged and without waiting.

There is nothing to wait for: Dataflow creates the job when this program has ended.
"""

import os
import sys

from beam_prep.cli import main

if __name__ == "__main__":
    # Without it, workers would start from Beam's own image, which does not have this package.
    image = f"--sdk_container_image={os.environ['BEAM_PREP_IMAGE']}"
    sys.exit(main(["run", "--verbose=true", "--wait=false", image, *sys.argv[1:]]))
