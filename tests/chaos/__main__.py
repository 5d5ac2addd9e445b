"""`python -m tests.chaos`: the long run. It prints the table. The exit status is 1 if an invariant fails."""

import argparse
import asyncio
import random
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from tests.chaos import plans
from tests.chaos.conductor import SHARES, SHARES_OF_CLUSTER
from tests.chaos.report import report
from tests.chaos.rounds import Round
from tests.chaos.run import SHARES_OF, Scale, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="Turns under random kills.")
    parser.add_argument("--turns", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--at-once", type=int, default=24, help="conversations at the same time")
    parser.add_argument("--store", choices=SHARES_OF, default="lone", help="one server, or a cluster of six nodes")
    parser.add_argument("--harm", nargs="*", choices=SHARES | SHARES_OF_CLUSTER, help="what is done; nothing: no harm")
    parser.add_argument("--agents", nargs="*", choices=plans.SHARES, default=[*plans.SHARES])
    parser.add_argument("--keep", action="store_true", help="keep the folder with logs, ledger and data")
    options = vars(parser.parse_args())
    keep = options.pop("keep")
    scale = Scale(**options)
    title = f"chaos: {scale.turns} turns, {scale.processes} processes, a {scale.store} store, seed {scale.seed}"
    sys.stdout.write(f"{title} …\n")
    sys.stdout.flush()
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    text, holds = report(*asyncio.run(_run(scale, folder)), title)
    sys.stdout.write(f"{text}\n")
    if holds and not keep:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        sys.stdout.write(f"logs, ledger and data are in {folder}\n")
    return 0 if holds else 1


async def _run(scale: Scale, folder: Path) -> tuple[Round, Round]:
    """End all started processes, even if a signal ends this one."""
    task = asyncio.create_task(run(scale, folder))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    return await task


if __name__ == "__main__":
    sys.exit(main())
