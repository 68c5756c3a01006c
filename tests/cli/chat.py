#!/usr/bin/env python3
"""chat.py KRAIT MODEL FOLDER - krait generate at a terminal; a line "pass NAME" or "FAIL NAME: WHY" for each claim."""
import fcntl
import os
import pty
import select
import subprocess
import sys
import termios
import time

krait, model, folder = sys.argv[1:4]
path = lambda name: os.path.join(folder, name)


def claim(name, holds, why=""):
    print("pass " + name if holds else "FAIL %s: %s" % (name, why))


def answer(*options):
    """What the program prints outside a chat."""
    return subprocess.run([krait, "generate", model, *options], stdin=subprocess.DEVNULL, capture_output=True).stdout


class Chat:
    """A chat whose terminal is its stdin and stderr; stdout goes to a file, or to the terminal too."""

    def __init__(self, *options, shows=False):
        self.master, slave = pty.openpty()
        settings = termios.tcgetattr(slave)
        settings[3] &= ~termios.ECHO
        termios.tcsetattr(slave, termios.TCSANOW, settings)
        self.out = open(path("chat.out"), "wb+")

        def own_terminal():
            os.setsid()
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen([krait, "generate", model, *options], stdin=slave, stderr=slave,
                                        stdout=slave if shows else self.out, preexec_fn=own_terminal)
        os.close(slave)
        self.seen = b""
        self.said_from = 0

    def wait_for(self, what, seconds=20):
        """All that the terminal shows up to `what`, from where the last wait ended; None if it does not come."""
        end = time.monotonic() + seconds
        while what not in self.seen:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.master], [], [], left)[0]:
                return None
            try:
                more = os.read(self.master, 65536)
            except OSError:
                return None
            self.seen += more
        shown, self.seen = self.seen.split(what, 1)
        return shown

    def send(self, data):
        os.write(self.master, data)

    def say(self, line):
        """Sends a line; what went to stdout, and to the terminal, until the next prompt."""
        self.send(line + b"\n")
        shown = self.wait_for(b"> ")
        self.out.seek(self.said_from)
        said = self.out.read()
        self.said_from += len(said)
        return said, shown if shown is not None else b"(no prompt came)"

    def end(self, keys=b"\x04"):
        self.send(keys)
        try:
            status = self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = "none: it did not end"
        os.close(self.master)
        self.out.close()
        return status


chat = Chat("-n", "5")
greeting = chat.wait_for(b"> ")
claim("greeting", greeting is not None and b"/help" in greeting, greeting)
said, _ = chat.say(b"Krait")
claim("answer", said == answer("-p", "Krait", "-n", "5"), said)
more, _ = chat.say(b"")
claim("an empty line continues", said + more == answer("-p", "Krait", "-n", "10"), more)
_, shown = chat.say(b"/save " + path("a state").encode())
claim("save", b"saved" in shown, shown)
after, _ = chat.say(b"and more")
want = answer("--load-state", path("a state"), "-p", "\nand more", "-n", "5")
claim("a second line", after == want, "%r, not %r" % (after, want))
_, shown = chat.say(b"/load " + path("a state").encode())
again, _ = chat.say(b"and more")
claim("load", again == want and b"loaded" in shown, "%r, not %r" % (again, want))
_, shown = chat.say(b"/reset")
claim("reset", shown == b"", shown)
said, _ = chat.say(b"Krait")
claim("answer after reset", said == answer("-p", "Krait", "-n", "5"), said)
for line, part in ((b"/help", b"/save FILE"), (b"/nonsense", b"unknown command /nonsense"), (b"/save", b"needs a file name"),
                   (b"/load", b"needs a file name"), (b"/load no/such", b"no/such"), (b"/save no/such/state", b"no/such/state"),
                   (b"/loads x", b"unknown command /loads x")):
    said, shown = chat.say(line)
    claim(line.decode(), part in shown and not said, shown)
chat.say(b"/reset")
said, _ = chat.say(b"//x")
claim("a line with /", said == answer("-p", "/x", "-n", "5"), said)
chat.send(b"half a line\x03")
claim("Ctrl-C at the prompt", chat.wait_for(b"> ") is not None)
chat.say(b"/reset")
said, _ = chat.say(b"Krait")
claim("what Ctrl-C threw away", said == answer("-p", "Krait", "-n", "5"), said)
status = chat.end()
claim("Ctrl-D", status == 0, status)

chat = Chat("-n", "-1", "--save-state", path("end"), "--ids", "--stats")
chat.wait_for(b"> ")
chat.send(b"1 2 3\n")
time.sleep(0.5)
chat.send(b"\x03")
shown = chat.wait_for(b"> ")
claim("Ctrl-C ends an answer", shown is not None and b"interrupted" in shown, shown)
said, shown = chat.say(b"x")
claim("not a number", b"'x' is not a token id" in shown, shown)
status = chat.end(b"/quit\n")
claim("quit", status == 0, status)
claim("state at the end", os.path.getsize(path("end")) > 0)

chat = Chat("-n", "4", "--logit-bias", "65=1000", shows=True)
chat.wait_for(b"> ")
_, shown = chat.say(b"x")
claim("a line break after an answer", shown == b"AAAA\r\n", shown)
_, shown = chat.say(b"")
claim("a line break after another", shown == b"AAAA\r\n", shown)
chat.end()

chat = Chat("-n", "4")
chat.wait_for(b"> ")
said, shown = chat.say(b"")
claim("an empty beginning", b"the prompt is empty" in shown and not said, shown)
chat.end()

chat = Chat("--samples", "2")
claim("samples", chat.wait_for(b"a chat has one sample") is not None)
claim("samples: status", chat.end(b"") == 2)
