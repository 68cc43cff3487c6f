# Tries what code in the sandbox must not be able to do; prints what it could.
import ctypes, fcntl, os, resource, signal, socket

libc = ctypes.CDLL(None, use_errno=True)
holes = []


def forbidden(name, action):
    try:
        action()
    except OSError:
        return
    holes.append(name)


def call(function, *arguments):
    if function(*arguments) == -1:
        raise OSError(ctypes.get_errno(), "refused")


forbidden("sockets", lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM))
forbidden("new processes", lambda: os.fork() or os._exit(0))
forbidden("programs", lambda: os.execv("/usr/bin/env", ["env"]))
forbidden("writing outside its folder", lambda: open("/usr/coa-proof", "w"))
forbidden("writing to its root", lambda: open("/coa-proof", "w"))
forbidden("writing between devices", lambda: open("/dev/coa-proof", "w"))
forbidden("shared memory", lambda: open("/dev/shm/coa-proof", "w"))
forbidden("the terminal", lambda: open("/dev/tty"))
forbidden("terminal input", lambda: fcntl.ioctl(0, 0x5412, b"x"))
forbidden("home folders", lambda: os.listdir("/home"))
forbidden("system settings", lambda: os.listdir("/etc"))
forbidden("processes", lambda: os.listdir("/proc"))
forbidden("signals to its parent", lambda: os.kill(1, signal.SIGINT))
forbidden("handles on its parent", lambda: os.pidfd_open(1))
forbidden("its parent's limits", lambda: resource.prlimit(1, resource.RLIMIT_NOFILE, (8, 8)))
forbidden("its parent's priority", lambda: os.setpriority(os.PRIO_PROCESS, 1, 19))
forbidden("its parent's processors", lambda: os.sched_setaffinity(1, {0}))
forbidden("shared memory segments", lambda: call(libc.shmget, 0x636F61, 4096, 0o1600))
forbidden("message queues", lambda: call(libc.msgget, 0x636F61, 0o1600))
forbidden("semaphores", lambda: call(libc.semget, 0x636F61, 1, 0o1600))
forbidden("nameless files", lambda: os.memfd_create("coa-proof"))
forbidden("attributes of its folder", lambda: os.setxattr("/scratch", "user.coa", b"proof"))
forbidden("namespaces", lambda: call(libc.unshare, 0x10000000))
if os.getpid() == 1 or os.getppid() != 1:
    holes.append("process ids of its own")
with open("file", "w") as file:
    file.write("x")
print("sandboxed" if not holes else "code can use " + ", ".join(holes))
