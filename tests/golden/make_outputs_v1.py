"""Makes outputs_v1.tar.gz with dali-run as of commit fe73940, whose journals and manifests have version 1 (CRC-32C and
SHA-256 of each file): a finished output, one with rejects tried again, one in parts, and one that was interrupted."""

import io
import sys
import tarfile
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from dali_run.writers.shards.output import Output
from tests.kit.jobs.retries import retry
from tests.kit.writers import Job, walk

JOB = Job("tfrecord", total=40, samples=12, fields=("label",))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        JOB.run(root / "finished")
        JOB.run(root / "retried")
        retry(JOB, root / "retried", still_bad={17})
        config = JOB.config(root / "parts")
        for i in range(2):
            span = config.part_range(range(JOB.total), (i, 2))
            with Output.open(config, {"seed": 1}, start=span.start, total=len(span), whole=40, part=(i, 2)) as out:
                out.add(span.start, span.stop, *JOB.batch(span.start, span.stop))
                out.finish({})
        with Output.open(JOB.config(root / "interrupted"), {"seed": 1}, total=JOB.total) as out:
            out.add(0, 30, *JOB.batch(0, 30))
        with tarfile.open(Path(__file__).with_name("outputs_v1.tar.gz"), "w:gz") as tar:
            for path in walk(root):
                info = tarfile.TarInfo(path.relative_to(root).as_posix())
                info.size = path.stat().st_size
                tar.addfile(info, io.BytesIO(path.read_bytes()))


if __name__ == "__main__":
    main()
