"""Storage servers on loopback, of which tests use one bucket: S3 (versitygw) and GCS (gcp-storage-emulator).

    with s3_server(folder) as store:
        job.run([*store.options, "--runner=..."])          # Beam's options say where the store is
    with gcs_server(folder) as store:
        job.run([*store.options, ...])                     # and so does the environment, while this lasts

`store.stop()` and `store.start()` in between: an outage; port and data stay. Workers that other programs start need
`store.environment`, too.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from beam_prep.storage.stores import client_for
from tests.engines.build import built
from tests.engines.processes import Server, await_, free_port, listens

BUCKET = "bucket"


@dataclass
class Store:
    """A storage server.

    Attributes:
        url: of its bucket: `s3://bucket`.
        port: where it listens, on localhost.
        options: of Beam, for jobs that use it.
        environment: variables, for processes that use it.
        command: starts it.
        settings: variables of the server's own.
        log: what it writes.
    """

    url: str
    port: int
    options: tuple[str, ...]
    environment: Mapping[str, str]
    command: Sequence[str]
    settings: Mapping[str, str]
    log: Path
    server: Server | None = field(default=None, repr=False)

    def start(self) -> None:
        """Starts it, and waits until it answers."""
        self.server = Server(self.command, self.log, self.settings)
        try:
            await_(lambda: listens(self.port), f"{self.url} to be up", server=self.server)
        except RuntimeError:
            self.stop()
            raise

    def stop(self) -> None:
        """Stops it; its data stay."""
        if self.server is None:
            return
        # The emulator writes its index anew with every object: SIGINT asks it to end between two requests.
        self.server.process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.server.process.wait(10)
        self.server.stop()
        self.server = None

    def requests(self) -> list[str]:
        """Its log: a line a request (and some of its own)."""
        return self.log.read_text(errors="replace").splitlines()


@contextlib.contextmanager
def _running(store: Store) -> Iterator[Store]:
    before = {name: os.environ.get(name) for name in store.environment}
    os.environ.update(store.environment)
    client_for.cache_clear()  # a client knows the server of the environment in which it was made
    store.start()
    try:
        yield store
    finally:
        store.stop()
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def s3_server(folder: Path) -> contextlib.AbstractContextManager[Store]:
    """An S3 server whose bucket is `s3://bucket`; its objects are files below `folder/s3/bucket`."""
    port = free_port()
    root, sidecar = folder / "s3", folder / "meta"
    (root / BUCKET).mkdir(parents=True, exist_ok=True)
    sidecar.mkdir(exist_ok=True)
    program = str(built("versitygw") / "versitygw")
    key = {"ROOT_ACCESS_KEY": "key", "ROOT_SECRET_KEY": "secret-secret"}
    options = (
        f"--s3_endpoint_url=http://127.0.0.1:{port}",
        f"--s3_access_key_id={key['ROOT_ACCESS_KEY']}",
        f"--s3_secret_access_key={key['ROOT_SECRET_KEY']}",
        "--s3_region_name=us-east-1",
    )
    command = [program, "--port", f"127.0.0.1:{port}", "posix", "--sidecar", str(sidecar), str(root)]
    return _running(Store(f"s3://{BUCKET}", port, options, {}, command, key, folder / "s3.log"))


_CREDENTIALS = {
    "type": "authorized_user",
    "client_id": "none",
    "client_secret": "none",
    "refresh_token": "none",
    "token": "none",
    "expiry": "2099-01-01T00:00:00",
}
"""What Beam takes for credentials, and need not refresh. Without any it looks for them for twenty seconds."""


def gcs_server(folder: Path) -> contextlib.AbstractContextManager[Store]:
    """A GCS server whose bucket is `gs://bucket`; its objects are files below `folder/gcs/.cloudstorage/bucket`."""
    port = free_port()
    (folder / "gcs").mkdir(parents=True, exist_ok=True)
    credentials = folder / "credentials.json"
    credentials.write_text(json.dumps(_CREDENTIALS))
    environment = {
        "STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{port}",
        "GOOGLE_APPLICATION_CREDENTIALS": str(credentials),
        "GOOGLE_CLOUD_PROJECT": "project",
    }
    command = [sys.executable, "-m", "gcp_storage_emulator", "-d", str(folder / "gcs"), "start", "--host=127.0.0.1"]
    command += [f"--port={port}", f"--default-bucket={BUCKET}"]
    return _running(Store(f"gs://{BUCKET}", port, (), environment, command, {}, folder / "gcs.log"))
