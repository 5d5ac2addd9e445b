"""Control group of code: where a service makes one, and that the kernel then ends code alone.

A test can seldom make groups that count memory, so User-mode Linux boots on the files of this machine.
"""

import os
import sys
from pathlib import Path

from smolsessions.agents.sandbox.code_group import LEAF, obstacle, own_group
from smolsessions.agents.sandbox.interpreter import DIED
from tests.support.debian import path_or_skip
from tests.support.preloaded import PYTHONPATH, ROOT
from tests.support.tiers import deep
from tests.support.waiting import run_program

RUN = f"PYTHONPATH={PYTHONPATH} PYTHONDONTWRITEBYTECODE=1 exec {sys.executable} -m tests.support.code_in_group"
# As a container in Kubernetes whose groups are writable: all its processes end if its memory runs out.
BOOT = f"""#!/bin/sh
mount -t proc proc /proc && mount -t sysfs sys /sys && mount -t cgroup2 groups /sys/fs/cgroup
cd /sys/fs/cgroup && echo +memory > cgroup.subtree_control && mkdir pod
echo 280M > pod/memory.max && echo 1 > pod/memory.oom.group && echo $$ > pod/cgroup.procs
cd {ROOT} && unshare --cgroup --mount sh -c "umount /sys/fs/cgroup && mount -t cgroup2 own /sys/fs/cgroup && {RUN}"
echo o > /proc/sysrq-trigger
"""
KERNEL = ("mem=700M", "quiet", "rootfstype=hostfs", "rootflags=/", "ro", "con=null", "con0=null,fd:1")


@deep
def test_the_kernel_ends_code_beyond_the_budget_and_nothing_else(tmp_path: Path) -> None:
    kernel, init = path_or_skip("user-mode-linux"), tmp_path / "init"
    init.write_text(BOOT)
    init.chmod(0o700)
    said = run_program([kernel, *KERNEL, f"init={init}", f"uml_dir={tmp_path}"], timeout=400).stdout
    assert DIED in said, said
    assert "what the other turn had is kept" in said


def make_group(folder: Path, processes: str, controllers: str = "cpu memory pids") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cgroup.controllers").write_text(controllers)
    (folder / "cgroup.procs").write_text(processes)
    (folder / "cgroup.subtree_control").touch()
    return folder


def test_a_group_counts_if_it_is_of_version_2_and_has_memory(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("3:memory:/old\n0::/units/one\n")
    assert own_group(tmp_path) is None
    group = make_group(tmp_path / "sys/fs/cgroup/units/one", "", "cpu pids")
    assert own_group(tmp_path) is None
    make_group(group, "")
    assert own_group(tmp_path) == group


def test_only_a_group_that_is_left_to_the_service_is_changed(tmp_path: Path) -> None:
    mine, nowhere = str(os.getpid()), tmp_path / "no systemd"
    for processes, reason in ((mine, ""), (f"1\n{mine}\n", ""), (f"{mine}\n7", "other processes"), (f"0\n{mine}", "o")):
        found = obstacle(make_group(tmp_path / "group", processes), nowhere)
        assert found.startswith(reason), processes
        assert bool(found) == bool(reason), processes
    own = make_group(tmp_path / "group", mine)
    assert ("delegated" in obstacle(own, tmp_path)) == (os.geteuid() == 0)
    assert obstacle(make_group(tmp_path / LEAF, "7"), tmp_path) == ""
    (own / "cgroup.subtree_control").unlink()
    assert "may not write" in obstacle(own, nowhere)
    assert "version 2" in obstacle(None)
