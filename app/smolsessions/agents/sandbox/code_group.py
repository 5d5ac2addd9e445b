"""Control group of model-written code: if its memory runs out, the kernel ends code and nothing else.

It lies beside the service's processes, in the group in which the service was started. That group must be the service's
own: writable, and without other processes. Elsewhere code has no group.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path

log = logging.getLogger(__name__)

LEAF, CODE = "smolsessions-service", "smolsessions-code-"
MARGIN_MB = 32  # with a sixteenth of the budget: each process begins with some memory


def own_group(root: Path = Path("/")) -> Path | None:
    """Return the folder of this process's group, or None if the system counts no memory in groups of version 2."""
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            group = root / "sys/fs/cgroup" / line.removeprefix("0::/")
            if line.startswith("0::/") and "memory" in (group / "cgroup.controllers").read_text().split():
                return group
    return None


def obstacle(group: Path | None, systemd: Path = Path("/run/systemd/system")) -> str:
    """Return why a service in this group can make none for code, or an empty text."""
    if group is None:
        return "the system counts no memory in control groups of version 2"
    if group.name == LEAF:
        return ""
    if not all(os.access(group / name, os.W_OK) for name in (".", "cgroup.procs", "cgroup.subtree_control")):
        return "the service may not write to its control group"
    if not _processes(group) <= {"1", str(os.getpid())}:  # a container may begin with an init
        return "other processes share the service's control group"
    if os.geteuid() == 0 and systemd.exists() and "trusted.delegate" not in os.listxattr(group):
        return "systemd has not delegated the service's control group"
    return ""


def settle() -> None:
    """Move this process into a leaf of its group, since a group that bounds those below it may hold no process."""
    with suppress(OSError):  # then no memory is counted in the leaf, and code gets no group
        group = own_group()
        if reason := obstacle(group):
            log.debug("code gets no control group: %s", reason)
        elif group and group.name != LEAF:
            leaf = group / LEAF
            leaf.mkdir(exist_ok=True)
            for pid in _processes(group):
                (leaf / "cgroup.procs").write_text(pid)
            (group / "cgroup.subtree_control").write_text("+memory")


def enclose(pid: int) -> Path | None:
    """Move a fork server into a group for the code of this process, and return the group. None if that cannot be."""
    leaf = own_group()
    if leaf is None or leaf.name != LEAF:
        return None
    for left in leaf.parent.glob(f"{CODE}*"):
        if not Path("/proc", left.name.removeprefix(CODE)).exists():  # its process has ended
            with suppress(OSError):
                left.rmdir()
    group = leaf.parent / f"{CODE}{os.getpid()}"
    with suppress(OSError):
        group.mkdir(exist_ok=True)
        (group / "cgroup.procs").write_text(str(pid))
        return group
    return None


def bound(group: Path, budget_mb: int) -> None:
    """Bound the memory of a group, beyond what its fork server takes."""
    with suppress(OSError):  # it has been removed, or the system has no swap
        anonymous = int((group / "memory.stat").read_text().split()[1])
        (group / "memory.max").write_text(str(anonymous + (budget_mb * 17 // 16 + MARGIN_MB) * 2**20))
        (group / "memory.swap.max").write_text("0")


def _processes(group: Path) -> set[str]:
    return set((group / "cgroup.procs").read_text().split())
