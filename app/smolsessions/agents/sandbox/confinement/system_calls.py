"""System calls that model-written code is refused, by number: `name:x86_64:aarch64`, `name:both`, `name:x86_64:-`."""

from __future__ import annotations

NEWEST = 462  # later calls than these are refused as if the kernel did not know them

NETWORK = """
    socket:41:198 connect:42:203 bind:49:200 listen:50:201 accept:43:202 accept4:288:242
"""

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
"""
"""`vmsplice` keeps memory in pipes that no limit counts, `io_setup` takes what all processes share; a watch reads the
names in a folder that Landlock keeps closed."""

CHECKED = """
    clone3:435 openat2:437 fork:57:- vfork:58:- execve:59:221 execveat:322:281 clone:56:220 kill:62:129
    tkill:200:130 tgkill:234:131 rt_sigqueueinfo:129:138 rt_tgsigqueueinfo:297:240 prlimit64:302:261 fcntl:72:25
    ioctl:16:29 prctl:157:167 socketpair:53:199 open:2:- openat:257:56
"""
"""Calls that are refused by their arguments, or by the limits of the agent."""


def numbers(calls: str, machine: str) -> dict[str, int]:
    """Return the numbers of the calls that this machine (x86_64 or aarch64) knows."""
    found = {}
    for call in calls.split():
        name, x86_64, *rest = call.split(":")
        number = x86_64 if machine == "x86_64" or not rest else rest[0]
        if number != "-":
            found[name] = int(number)
    return found
