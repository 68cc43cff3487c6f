# The program of a warm interpreter: reads calls, one JSON object a line, and answers each with one.
# It is process 1 of its namespace, so it can kill everything a call may have left.
import ctypes, json, os, resource, select, signal, sys, time

settings = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
filters = [bytes.fromhex(text) for text in settings["filters"]]
SCRATCH = "/scratch"
PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 4, 38, 22, 2
THREADS = 128


class Program(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def confine():
    for limit, value in [
        (resource.RLIMIT_CPU, settings["cpu"]),
        (resource.RLIMIT_AS, settings["memory"]),
        (resource.RLIMIT_FSIZE, settings["scratch"]),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_NPROC, THREADS),
        (resource.RLIMIT_MSGQUEUE, 0),
    ]:
        resource.setrlimit(limit, (value, value))
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs")
    for code in filters:
        buffer = ctypes.create_string_buffer(code, len(code))
        program = Program(len(code) // 8, ctypes.cast(buffer, ctypes.c_void_p))
        if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0):
            raise OSError(ctypes.get_errno(), "seccomp")


def child(code, stdin, output):
    os.dup2(stdin, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.closerange(3, 64)
    sys.stdin = open(0, closefd=False)
    sys.stdout = open(1, "w", closefd=False)
    sys.stderr = sys.stdout
    sys.argv = [""]
    status = 1
    try:
        for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
            ours = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, signal.SIG_IGN if number in (signal.SIGPIPE, signal.SIGXFSZ) else ours)
        confine()
        exec(compile(code, "<code>", "exec"), {"__name__": "__main__", "__builtins__": __builtins__})
        status = 0
    except SystemExit as stop:
        status = 0 if stop.code in (None, 0) else 1
    except BaseException as error:
        # The last line of a traceback is what an agent can use.
        try:
            text = str(error).splitlines()
        except BaseException:
            text = ["<exception str() failed>"]
        try:
            print(type(error).__name__ + (": " + text[0] if text else ""))
        except BaseException:
            pass
    try:
        sys.stdout.flush()
    except BaseException:
        status = 1
    os._exit(status)


def shortened(text):
    limit = settings["output"]
    if len(text) <= limit:
        return text
    half = limit // 2
    return text[:half] + "\n... %d characters cut ...\n" % (len(text) - 2 * half) + text[-half:]


def empty(folder):
    os.chmod(folder, 0o700)
    os.utime(folder, (0, 0))
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            empty(entry.path)
            os.rmdir(entry.path)
        else:
            os.unlink(entry.path)


def run(call):
    read_in, write_in = os.pipe()
    read_out, write_out = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(write_in)
        os.close(read_out)
        child(call["code"], read_in, write_out)
    os.close(read_in)
    os.close(write_out)
    os.set_blocking(write_in, False)
    stdin, output, timed_out = call["stdin"].encode(), bytearray(), False
    deadline = time.monotonic() + settings["wall"]
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            timed_out = True
            break
        readable, writable, _ = select.select([read_out], [write_in] if write_in >= 0 else [], [], left)
        if writable:
            try:
                stdin = stdin[os.write(write_in, stdin):] if stdin else stdin
            except BrokenPipeError:
                stdin = b""
            if not stdin:
                os.close(write_in)
                write_in = -1
        if readable:
            part = os.read(read_out, 65536)
            if not part:
                break
            # Twice what can be shown at either end is enough; the rest is counted and dropped.
            output += part
            if len(output) > 1 << 20:
                del output[1 << 19 : -(1 << 19)]
    if write_in >= 0:
        os.close(write_in)
    status = None
    if not timed_out:
        # The output is closed; a child that goes on without it has until the deadline.
        while status is None and time.monotonic() < deadline:
            done, code = os.waitpid(pid, os.WNOHANG)
            if done:
                status = code
            else:
                time.sleep(0.0005)
    timed_out = status is None
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        pass
    while True:
        try:
            done, code = os.waitpid(-1, 0)
        except ChildProcessError:
            break
        if done == pid and status is None:
            status = code
    os.close(read_out)
    try:
        empty(SCRATCH)
        spent = False
    except (OSError, RecursionError):
        spent = True
    text = shortened(output.decode("utf-8", "replace"))
    if timed_out:
        text += "TimeoutError: the code took longer than %g seconds\n" % settings["wall"]
    elif os.WIFSIGNALED(status):
        text += "Killed: signal %d\n" % os.WTERMSIG(status)
    return {"number": call["number"], "text": text, "ok": not timed_out and status == 0, "timed_out": timed_out, "spent": spent}


# The code is a child of this process and runs as the same user: it gets no terminal, no signal through, no look inside.
os.setsid()
for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
    signal.signal(number, signal.SIG_IGN)
if libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0):
    raise OSError(ctypes.get_errno(), "dumpable")
answers = os.fdopen(os.dup(1), "w")
answers.write("ready\n")
answers.flush()
for line in sys.stdin:
    answers.write(json.dumps(run(json.loads(line))) + "\n")
    answers.flush()
