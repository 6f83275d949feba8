# SPDX-License-Identifier: MIT
"""chat_pty.py KVSTATE MODEL: `kvstate chat` on a terminal: line editing, history between runs, lines
of several parts, Ctrl-C that stops an answer and not the program, Ctrl-D."""
import os
import pty
import re
import select
import signal
import sys
import tempfile
import time


class Terminal:
    def __init__(self, command, env):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(command[0], command, env)
        self.seen = ""
        self.at = 0

    def expect(self, pattern, seconds=60):
        """Text up to the end of the match, from where the last one ended."""
        end = time.monotonic() + seconds
        while True:
            m = re.compile(pattern, re.S).search(self.seen, self.at)
            if m:
                text = self.seen[self.at:m.end()]
                self.at = m.end()
                return text
            left = end - time.monotonic()
            ready = left > 0 and select.select([self.fd], [], [], left)[0]
            data = b""
            if ready:
                try:
                    data = os.read(self.fd, 65536)
                except OSError:
                    data = b""
            if not data:
                raise AssertionError("no %r in %r" % (pattern, self.seen[self.at:]))
            self.seen += data.decode(errors="replace")

    def send(self, text):
        os.write(self.fd, text.encode())

    def end(self):
        end = time.monotonic() + 60
        while time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                os.close(self.fd)
                return os.waitstatus_to_exitcode(status)
            if select.select([self.fd], [], [], 0.05)[0]:
                try:
                    self.seen += os.read(self.fd, 65536).decode(errors="replace")
                except OSError:
                    pass
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        raise AssertionError("the program did not end after %r" % self.seen[-400:])


def check(what, good, detail=""):
    check.n += 1
    check.bad += not good
    print("%s %d - %s %s" % ("ok" if good else "not ok", check.n, what, "" if good else detail))


check.n = check.bad = 0


def main():
    kvstate, model, editing = sys.argv[1:4]
    with tempfile.TemporaryDirectory() as folder:
        env = dict(os.environ, XDG_STATE_HOME=folder, TERM="xterm", LC_ALL="C.UTF-8", NO_COLOR="1")
        command = [kvstate, "chat", "-m", model, "-n", "-1", "--ignore-eos", "--seed", "1", "-c", "30000"]
        t = Terminal(command, env)
        t.expect("Ctrl-D ends")
        t.expect("> ")
        t.send("/system Be terse. \u00e9\u4e16\n")
        t.expect("> ")
        t.send("/system\n")
        check("UTF-8 typed", "Be terse. \u00e9\u4e16" in t.expect("terse[^\r\n]*\r\n"))
        t.expect("> ")
        if editing == "1":
            t.send("/sysXtem\x02\x02\x02\x7f\n")  # back three, delete the X
            check("a line is edited", "Be terse" in t.expect("terse|unknown command"))
            t.expect("> ")
        t.send("/stats\n")
        t.expect("0 turns since")
        t.expect("> ")
        # an endless answer
        t.send("hello\n")
        t.expect("hello\r\n.")
        time.sleep(0.5)
        t.send("\x03")
        text = t.expect("stopped after \\d+ tokens; they are kept")
        check("Ctrl-C stops the answer", True)
        made = int(re.search("after (\\d+) tokens", text).group(1))
        t.expect("> ")
        t.send("/stats\n")
        text = t.expect("state [0-9.]+ \\w+")
        check("what was produced is kept", "1 turns" in text and "answers %d tokens" % made in text, repr(text))
        t.expect("> ")
        # at the prompt it drops the line
        t.send("half a line\x03")
        t.expect("Ctrl-D or /exit ends")
        t.expect("> ")
        t.send("/undo\n")
        t.expect("the last turn is taken back")
        t.expect("> ")
        t.send("/system a\\\n")
        t.expect("\\.\\.\\. ")
        t.send("b\n")
        t.expect("> ")
        t.send("/system\n")
        check("a backslash goes on in the next line", re.search("a\r\nb\r\n", t.expect("a\r\nb\r\n")) is not None)
        t.expect("> ")
        if editing == "1":
            t.send("\x1b[A\x1b[A\n")  # the line before the last: "b"
            t.expect("b\r\n")
            time.sleep(0.5)
            t.send("\x03")
            t.expect("stopped")
            t.expect("> ")
        t.send("\x04")
        check("Ctrl-D ends", t.end() == 0)
        path = os.path.join(folder, "kvstate", "history")
        if editing == "1":
            check("the history is its owner's", os.stat(path).st_mode & 0o777 == 0o600 and
                  os.stat(os.path.dirname(path)).st_mode & 0o777 == 0o700)
            t = Terminal(command, env)
            t.expect("> ")
            t.send("/stats\n")
            t.expect("> ")
            t.send("\x1b[A\x1b[A\x1b[A")
            t.expect("/system")
            check("the history is there in the next run", True)
            t.send("\x15/exit\n")  # the line away
            t.end()
            before = open(path).read()
            t = Terminal(command + ["--no-history"], env)
            t.expect("> ")
            t.send("/system secret\n")
            t.expect("> ")
            t.send("/exit\n")
            check("--no-history keeps none", t.end() == 0 and open(path).read() == before)
    print("1..%d" % check.n)
    return 1 if check.bad else 0


sys.exit(main())
