"""Spark as a peer: a standalone cluster on this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from .libraries import Peer, load_block
from .works import WORKERS, Data, Floats, Work, paused


class Spark(Peer):
    """A standalone cluster of six workers with speculation, each on an address of its own.

    Spark puts no second copy of a task on the address of the first, so one address would not do.
    """

    needs: ClassVar[tuple[str, ...]] = ("pyspark",)

    def __init__(self, data: Data) -> None:
        super().__init__(data)
        import pyspark

        home = Path(pyspark.__file__).parent
        if shutil.which("java") is None:
            raise RuntimeError("Spark needs Java, and there is no java on the path")
        os.environ |= {"SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable}
        os.environ |= {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}
        port = 7000 + os.getpid() % 2000
        ui = ("--webui-port", "0")
        self._daemon(home, "master.Master", "--host", "127.0.0.1", "--port", str(port), *ui)
        url = f"spark://127.0.0.1:{port}"
        for i in range(WORKERS):
            host = ("--host", f"127.0.0.{i + 2}", "--cores", "1", "--memory", "1g")
            self._daemon(home, "worker.Worker", *host, "-d", str(data.folder / "spark"), *ui, url)
        conf: Any = pyspark.SparkConf().setMaster(url).setAppName("peers")
        conf.setAll(
            {
                "spark.executor.memory": "900m",
                "spark.executor.cores": "1",
                "spark.speculation": "true",
                "spark.speculation.interval": "50ms",
                "spark.ui.enabled": "false",
                "spark.driver.host": "127.0.0.1",
                "spark.log.level": "ERROR",
                "spark.scheduler.minRegisteredResourcesRatio": "1.0",
                "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
                "spark.cores.max": str(WORKERS),
            }.items()
        )
        self.context = pyspark.SparkContext(conf=conf)

    def _daemon(self, home: Path, name: str, *options: str) -> None:
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *options]
        subprocess.Popen(command, stdout=sys.stderr)

    def prepare(self, name: str, work: Work, delays: Floats) -> list[int]:
        self.delays = delays
        limit = time.monotonic() + 60
        while self._executors() < WORKERS and time.monotonic() < limit:
            time.sleep(0.2)
        folder, array = self.data.folder, work.array

        def block(i: int, _: Any) -> Iterator[Any]:
            yield None if array is None else load_block(folder, array, i)

        empty = self.context.parallelize(range(WORKERS), WORKERS)
        self.blocks = empty.mapPartitionsWithIndex(block).cache()
        self.blocks.count()
        held = empty.map(executor_pid).collect()
        return list(dict.fromkeys(held))

    def _executors(self) -> int:
        status: Any = self.context._jsc.sc().statusTracker()
        return len(status.getExecutorInfos()) - 1  # without the driver

    def evaluate(self, work: Work, operand: Any) -> Floats:
        fn, pauses = work.fn, self.pauses()
        sent = self.context.broadcast(work.operands(operand))

        def part(i: int, blocks: Any) -> Iterator[Floats]:
            from pyspark import TaskContext

            context: Any = TaskContext.get()
            again = context.attemptNumber()  # a second copy has delays of its own
            for block in blocks:
                yield paused(fn, block, sent.value[i], pauses[(i + again) % WORKERS])

        replies = self.blocks.mapPartitionsWithIndex(part).collect()
        sent.unpersist()
        return work.combine(replies)


def executor_pid(_: int) -> int:
    """The JVM that this Python process works for: the parent of its parent, or its parent."""
    time.sleep(0.3)  # so that every executor gets a task
    pid = os.getpid()
    for _ in range(4):
        if b"java" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]:
            return pid
        pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    raise RuntimeError("no executor above this process")
