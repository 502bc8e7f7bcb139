"""A real Flink cluster on this machine: JobManager and TaskManagers are processes; and Beam's job server."""

import contextlib
import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.engines.build import built
from tests.engines.conftest import program
from tests.engines.processes import Server, await_, free_port, listens, serving

# What Flink's own start scripts open to reflection.
_PACKAGES = "lang net io nio lang.reflect text time util util.concurrent util.concurrent.atomic util.concurrent.locks"
OPENS = [
    "--add-exports=java.base/sun.net.util=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    *(f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in _PACKAGES.split()),
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
]

_LOG4J = """\
rootLogger.level = INFO
rootLogger.appenderRef.file.ref = Console
appender.console.name = Console
appender.console.type = CONSOLE
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss,SSS} %-5p %-40c{1} - %m%n
"""


class Cluster:
    """A running cluster.

    Attributes:
        address: of the REST interface, `localhost:8081` or the like.
        task_managers: its TaskManagers, each a `Server`.
    """

    def __init__(self, folder: Path, more: Mapping[str, str]) -> None:
        self._folder = folder
        self._rest, rpc = free_port(), free_port()
        self.address = f"localhost:{self._rest}"
        self.task_managers: list[Server] = []
        conf = folder / "conf"
        conf.mkdir(parents=True)
        (conf / "log4j.properties").write_text(_LOG4J)
        settings = {
            "jobmanager.rpc.address": "localhost",
            "jobmanager.rpc.port": rpc,
            "jobmanager.memory.process.size": "1100m",
            "rest.address": "localhost",
            "rest.bind-address": "localhost",
            "rest.port": self._rest,
            "taskmanager.host": "localhost",
            "taskmanager.bind-host": "localhost",
            "taskmanager.memory.process.size": "1400m",
            "taskmanager.memory.managed.size": "128m",
            "taskmanager.numberOfTaskSlots": 2,
            # Of its default of 512, every task that hands on data in batch mode wants all: small machines run out.
            "taskmanager.network.sort-shuffle.min-buffers": 64,
            "classloader.resolve-order": "parent-first",
            # One that died is found out by calls that fail, soon; a busy machine is no reason to give one up.
            "heartbeat.interval": 1000,
            # Only the cluster can say so: of a batch job's own options for it, Beam makes no use. Of a lost TaskManager
            # each task fails by itself, and then the readers of its results. This strategy counts what fails while a
            # restart is awaited as one failure; fixed-delay counts each, and three attempts were too few.
            "restart-strategy.type": "exponential-delay",
            "restart-strategy.exponential-delay.initial-backoff": "1 s",
            "restart-strategy.exponential-delay.attempts-before-reset-backoff": 4,
            "io.tmp.dirs": str(folder / "tmp"),
            **more,
        }
        (conf / "config.yaml").write_text("".join(f"{name}: {value}\n" for name, value in settings.items()))
        self._conf = str(conf)
        self._java = [program("java"), *OPENS, f"-Dlog4j.configurationFile={conf / 'log4j.properties'}"]
        # Beam's classes too, as in the image of a cluster that runs Beam alone. Else each job brings 160 MB of them and
        # SDK workers, which then depend on the job's classes, end and start again between any two stages.
        beam = [
            jar for jar in (built("job_server") / "lib").glob("*.jar") if not jar.name.startswith(("flink-", "slf4j-"))
        ]
        self._classes = ":".join(str(jar) for jar in [*sorted(built("flink").glob("*.jar")), *sorted(beam)])

    def get(self, path: str) -> Any:
        """What the REST interface says."""
        with urllib.request.urlopen(f"http://{self.address}{path}", timeout=30) as answer:
            return json.load(answer)

    def slots(self) -> int:
        """Slots of the TaskManagers that are registered; 0 as long as nobody answers."""
        try:
            return int(self.get("/overview")["slots-total"])
        except urllib.error.URLError:
            return 0

    def names(self) -> list[str]:
        """What Flink calls its TaskManagers."""
        return [one["id"] for one in self.get("/taskmanagers")["taskmanagers"]]

    def job_manager(self) -> contextlib.AbstractContextManager[Server]:
        main = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
        options = ["-Xmx640m", "-cp", self._classes, main, "--configDir", self._conf, "--executionMode", "cluster"]
        return serving([*self._java, *options], self._folder / "job_manager.log", lambda: listens(self._rest))

    def add_task_manager(self) -> Server:
        """Starts one more; it registers by itself."""
        jvm, dynamic = self._resources()
        main = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"
        command = [*self._java, *jvm, "-cp", self._classes, main, "--configDir", self._conf, *dynamic]
        server = Server(command, self._folder / f"task_manager_{len(self.task_managers)}.log")
        self.task_managers.append(server)
        return server

    def _resources(self) -> tuple[list[str], list[str]]:
        """(options of the JVM, of Flink): sizes of all pools of memory, which Flink computes, then wants told."""
        main = "org.apache.flink.runtime.util.bash.BashJavaUtils"
        command = ["-cp", self._classes, main, "GET_TM_RESOURCE_PARAMS", "--configDir", self._conf]
        done = subprocess.run([*self._java, *command], check=True, capture_output=True, text=True)
        mark = "BASH_JAVA_UTILS_EXEC_RESULT:"
        jvm, dynamic = (line.removeprefix(mark).split() for line in done.stdout.splitlines() if line.startswith(mark))
        return jvm, dynamic

    def wait_for_slots(self, count: int) -> None:
        """Until so many slots are registered, and no more."""
        await_(lambda: self.slots() == count, f"{count} slots of Flink", server=self.task_managers[-1])


@contextlib.contextmanager
def cluster(folder: Path, settings: Mapping[str, str]) -> Iterator[Cluster]:
    """A cluster with one TaskManager of two slots while the block lasts.

    Args:
        folder: for configuration, logs and temporary files.
        settings: more of them, of Flink.
    """
    made = Cluster(folder, settings)
    with made.job_manager():
        try:
            made.add_task_manager()
            made.wait_for_slots(2)
            yield made
        finally:
            for server in made.task_managers:
                server.stop()


@contextlib.contextmanager
def job_server(folder: Path, address: str) -> Iterator[str]:
    """Beam's job server for a cluster; gives its endpoint.

    Args:
        folder: for logs and staged files, which TaskManagers have to see too.
        address: of the cluster.
    """
    job, artifact, expansion = free_port(), free_port(), free_port()
    command = [
        *[program("java"), *OPENS, "-Xmx640m", "-jar", str(built("job_server") / "job_server.jar")],
        *[f"--flink-master={address}", "--job-host=localhost", f"--job-port={job}", f"--artifact-port={artifact}"],
        *[f"--expansion-port={expansion}", f"--artifacts-dir={folder / 'artifacts'}"],
    ]
    folder.mkdir(parents=True, exist_ok=True)
    with serving(command, folder / "job_server.log", lambda: listens(job)):
        yield f"localhost:{job}"


@dataclass(frozen=True)
class Flink:
    """A cluster with its job server.

    Attributes:
        cluster: the cluster.
        endpoint: of the job server.
    """

    cluster: Cluster
    endpoint: str

    @property
    def options(self) -> list[str]:
        """To run a job on it; what SDK workers there are is said besides."""
        where = ["--runner=FlinkRunner", f"--flink_master={self.cluster.address}", f"--job_endpoint={self.endpoint}"]
        return [*where, *self.settings]

    @property
    def settings(self) -> list[str]:
        """The cluster has Beam's classes: nothing is left to bring, and SDK workers can outlive a stage."""
        return [f"--files_to_stage={built('job_server') / 'job_server.jar'}", "--environment_cache_millis=60000"]


@contextlib.contextmanager
def running(folder: Path, settings: Mapping[str, str] = MappingProxyType({})) -> Iterator[Flink]:
    """A cluster with one TaskManager of two slots, and its job server. `settings`: more of the cluster."""
    with cluster(folder / "cluster", settings) as made, job_server(folder / "jobs", made.address) as endpoint:
        yield Flink(made, endpoint)
