"""Seccomp filter for model-written code: a BPF program that refuses system calls. It needs no privilege.

It is a deny-list: the calls of Python's libraries are not known in advance, and most of them are harmless.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Collection
from dataclasses import dataclass

from smolsessions.agents.sandbox.confinement.libc import SET_DEATH_SIGNAL, SET_DUMPABLE, SET_SECCOMP, call

FILTER_MODE = 2
LOAD, AND, EQUAL, AT_LEAST, RETURN = 0x20, 0x54, 0x15, 0x35, 0x06  # of words, with a constant
NUMBER_AT, ARCHITECTURE_AT, ARGUMENTS_AT = 0, 4, 16
ALLOW, FAIL, KILL = 0x7FFF0000, 0x00050000, 0x80000000
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
OPENS_TO_WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
STREAM, SEQUENCE, KIND_OF_SOCKET = 1, 5, 0xF
SHARED_AND_ANONYMOUS = 0x21
NEW_NAMESPACES = 0x7E020000
SET_OWNER, SET_OWNERS_SIGNAL, SET_OWNER_EXTENDED = 8, 10, 15  # fcntl
# the allowed ioctls; others, mostly of file systems, may modify a file through a descriptor for reading
IS_TERMINAL, WINDOW_SIZE, BYTES_TO_READ, SET_BLOCKING = 0x5401, 0x5413, 0x541B, 0x5421
SET_CLOSE_ON_EXEC, UNSET_CLOSE_ON_EXEC = 0x5451, 0x5450

# System calls by number: `name:x86_64:aarch64`, `name:both`, `name:x86_64:-`.
NEWEST = 462  # later calls fail as if the kernel did not know them

NETWORK = """
    socket:41:198 connect:42:203 bind:49:200 listen:50:201 accept:43:202 accept4:288:242 setsockopt:54:208
    sendmsg:46:211 sendmmsg:307:269
"""
"""`setsockopt` enlarges the buffers of a pair of sockets, and `sendmsg` keeps files open in them: both pin memory that
no limit counts."""

SHARED_MEMORY = """
    shmget:29:194 shmat:30:196 shmctl:31:195 semget:64:190 semop:65:193 semctl:66:191 semtimedop:220:192
    msgget:68:186 msgsnd:69:189 msgrcv:70:188 msgctl:71:187 mq_open:240:180 mq_unlink:241:181
"""

CHANGES = """
    truncate:76:45 rename:82:- renameat:264:38 renameat2:316:276 mkdir:83:- mkdirat:258:34 rmdir:84:- creat:85:-
    link:86:- linkat:265:37 unlink:87:- unlinkat:263:35 symlink:88:- symlinkat:266:36 chmod:90:- fchmod:91:52
    fchmodat:268:53 fchmodat2:452 chown:92:- fchown:93:55 lchown:94:- fchownat:260:54 mknod:133:- mknodat:259:33
    utime:132:- utimes:235:- futimesat:261:- utimensat:280:88 setxattr:188:5 lsetxattr:189:6 fsetxattr:190:7
    removexattr:197:14 lremovexattr:198:15 fremovexattr:199:16 open_by_handle_at:304:265
"""

PROCESSES = """
    ptrace:101:117 process_vm_readv:310:270 process_vm_writev:311:271 pidfd_open:434 pidfd_getfd:438
    pidfd_send_signal:424 process_madvise:440 process_mrelease:448 kcmp:312:272 perf_event_open:298:241
    setpriority:141:140 sched_setparam:142:118 sched_setscheduler:144:119 sched_setaffinity:203:122
    sched_setattr:314:274 ioprio_set:251:30 migrate_pages:256:238 move_pages:279:239 setpgid:109:154
    setsid:112:157 personality:135:92
"""

KERNEL = """
    unshare:272:97 setns:308:268 mount:165:40 umount2:166:39 pivot_root:155:41 chroot:161:51 open_tree:428
    move_mount:429 fsopen:430 fsconfig:431 fsmount:432 fspick:433 mount_setattr:442 bpf:321:280 keyctl:250:219
    add_key:248:217 request_key:249:218 io_uring_setup:425 io_uring_enter:426 io_uring_register:427
    userfaultfd:323:282 init_module:175:105 finit_module:313:273 delete_module:176:106 kexec_load:246:104
    kexec_file_load:320:294 reboot:169:142 syslog:103:116 quotactl:179:60 quotactl_fd:443 acct:163:89
    fanotify_init:300:262 lookup_dcookie:212:18 swapon:167:224 swapoff:168:225 modify_ldt:154:- iopl:172:-
    ioperm:173:- vmsplice:278:75 io_setup:206:0 inotify_add_watch:254:27 sync:162:81 syncfs:306:267
    landlock_create_ruleset:444 landlock_add_rule:445 landlock_restrict_self:446
"""
"""No limit counts what `vmsplice` keeps in pipes, and Landlock in rules. `io_setup` takes from a limit that all
processes share. `inotify` reads the names in a folder that Landlock closes."""

CHECKED = """
    clone3:435 openat2:437 fork:57:- vfork:58:- execve:59:221 execveat:322:281 clone:56:220 kill:62:129
    tkill:200:130 tgkill:234:131 rt_sigqueueinfo:129:138 rt_tgsigqueueinfo:297:240 prlimit64:302:261 fcntl:72:25
    ioctl:16:29 prctl:157:167 socketpair:53:199 open:2:- openat:257:56 mmap:9:222
"""
"""Calls that are refused for their arguments, or by the limits of the agent."""


@dataclass(frozen=True)
class _Check:
    """Check of one argument of a call: only these values pass, or all others if `only` is False."""

    argument: int
    values: Collection[int]
    only: bool = True
    mask: int = 0xFFFFFFFF
    error: int = errno.EPERM


def has_filter() -> bool:
    return sys.platform == "linux" and platform.machine() in _ARCHITECTURES


class Filter:
    """Filter for later processes. Each adds its own id, which takes less than the 1 ms of a new program."""

    def __init__(self, *, processes: bool, writes: bool, signals: bool) -> None:
        """Allow only calls that other means restrict.

        Args:
            processes: allow starting processes, threads and programs.
            writes: allow opening files for writing.
            signals: allow signals to any process. Otherwise a process can only signal itself.
        """
        machine = platform.machine()
        self._known = numbers(CHECKED, machine)
        self._signals = signals
        refused = _refused(machine, processes=processes, writes=writes)
        self._start = b"".join(
            (
                *(_step(LOAD, ARCHITECTURE_AT), _step(EQUAL, _ARCHITECTURES[machine], 1), _step(RETURN, KILL)),
                *(_step(LOAD, NUMBER_AT), _step(AT_LEAST, NEWEST + 1, 0, 1), _fail(errno.ENOSYS)),
                *(_step(EQUAL, number, 0, 1) + _fail(error) for number, error in refused.items()),
                self._checks(_checks(processes=processes, writes=writes)),
            )
        )

    def install(self) -> None:
        """Install the filter in this process, for good. Raises `OSError`."""
        pid = os.getpid()
        own = {"prlimit64": _Check(0, (0, pid))}
        if not self._signals:
            own["kill"] = own["prlimit64"]
            own |= dict.fromkeys(("tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"), _Check(0, (pid,)))
        program = self._start + self._checks(own) + _step(RETURN, ALLOW)
        instructions = ctypes.create_string_buffer(program, len(program))
        header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(instructions))
        call("prctl", SET_SECCOMP, FILTER_MODE, header, 0, 0)

    def _checks(self, checks: dict[str, _Check]) -> bytes:
        """Check the lower half of an argument of each call. The kernel ignores the upper half of these."""
        program = b""
        for name, check in checks.items():
            if name in self._known:
                body = [_step(LOAD, ARGUMENTS_AT + 8 * check.argument), _step(AND, check.mask)]
                left = len(check.values)
                for value in check.values:
                    body.append(_step(EQUAL, value, left))
                    left -= 1
                ends = (_fail(check.error), _step(RETURN, ALLOW))
                body += ends if check.only else reversed(ends)
                program += _step(EQUAL, self._known[name], 0, len(body)) + b"".join(body)
        return program


def numbers(calls: str, machine: str) -> dict[str, int]:
    """Return the numbers of the calls that this machine (x86_64 or aarch64) knows."""
    found = {}
    for entry in calls.split():
        name, x86_64, *rest = entry.split(":")
        number = x86_64 if machine == "x86_64" or not rest else rest[0]
        if number != "-":
            found[name] = int(number)
    return found


def _refused(machine: str, *, processes: bool, writes: bool) -> dict[int, int]:
    known = numbers(CHECKED, machine)
    refused = dict.fromkeys(numbers(NETWORK, machine).values(), errno.EACCES)
    for group in (SHARED_MEMORY, CHANGES, PROCESSES, KERNEL):
        refused |= dict.fromkeys(numbers(group, machine).values(), errno.EPERM)
    refused[known["clone3"]] = errno.ENOSYS  # a filter cannot read its arguments; libraries fall back to `clone`
    if not writes:
        refused[known["openat2"]] = errno.ENOSYS
    if not processes:
        started = ("fork", "vfork", "clone", "execve", "execveat")
        refused |= {known[name]: errno.EAGAIN for name in started if name in known}
    return refused


def _checks(*, processes: bool, writes: bool) -> dict[str, _Check]:
    owners = (SET_OWNER, SET_OWNERS_SIGNAL, SET_OWNER_EXTENDED)
    asked = (IS_TERMINAL, WINDOW_SIZE, BYTES_TO_READ, SET_BLOCKING, SET_CLOSE_ON_EXEC, UNSET_CLOSE_ON_EXEC)
    checks = {
        "fcntl": _Check(1, owners, only=False),  # it could send any process a signal when a socket is ready
        "ioctl": _Check(1, asked, error=errno.ENOTTY),
        "prctl": _Check(0, (SET_DEATH_SIGNAL, SET_DUMPABLE), only=False),  # the service has set them
        "mmap": _Check(3, (SHARED_AND_ANONYMOUS,), only=False, mask=0x2F),  # one mapped page keeps it all
        "socketpair": _Check(1, (STREAM, SEQUENCE), mask=KIND_OF_SOCKET),  # a datagram could go to any address
    }
    if not writes:
        closed = _Check(1, (0,), mask=OPENS_TO_WRITE, error=errno.EACCES)
        checks |= {"open": closed, "openat": _Check(2, (0,), mask=OPENS_TO_WRITE, error=errno.EACCES)}
    if processes:
        checks["clone"] = _Check(0, (0,), mask=NEW_NAMESPACES)
    return checks


def _fail(error: int) -> bytes:
    return _step(RETURN, FAIL | error)


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
