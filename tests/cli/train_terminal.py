#!/usr/bin/env python3
"""train_terminal.py KRAIT - krait train at a terminal, in a folder with notes.txt; a line "pass NAME" or "FAIL NAME: WHY"
for each claim."""
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time

krait = sys.argv[1]
tiny = ["--data", "notes.txt", "--d-model", "32", "--d-state", "16", "--head-dim", "16", "--layers", "2", "--batch", "4",
        "--length", "32", "--eval-batches", "2", "--eval-every", "50"]


def claim(name, holds, why=""):
    print("pass " + name if holds else "FAIL %s: %r" % (name, why))


class Run:
    """A run whose terminal has that many columns."""

    def __init__(self, *options, columns=120, **environment):
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

        def own_terminal():
            os.setsid()
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

        env = dict(os.environ, TERM="xterm", **environment)
        self.process = subprocess.Popen([krait, "train", *tiny, *options], stdin=slave, stdout=slave, stderr=slave,
                                        preexec_fn=own_terminal, env=env)
        os.close(slave)
        self.shown = b""

    def read(self, until=None, seconds=30):
        end = time.monotonic() + seconds
        while until is None or until not in self.shown:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.master], [], [], left)[0]:
                break
            try:
                more = os.read(self.master, 65536)
            except OSError:
                break
            if not more:
                break
            self.shown += more
        return self.shown

    def end(self):
        self.read()
        status = self.process.wait(30)
        os.close(self.master)
        return status


def columns_of(text):
    return len(text.decode("utf-8", "replace"))


run = Run("--out", "term1", "--steps", "60")
status = run.end()
lines = re.split(rb"[\r\n]+", run.shown)
live = [line for line in lines if line.startswith(b" step ")]
claim("status", status == 0, status)
claim("live lines", len(live) >= 2 and run.shown.count(b"\r step") >= 2, run.shown)
claim("bar", re.search(rb"^ step +60/60 \[=+\] loss \d\.\d+  eval \d\.\d+ +.*tok/s", live[-1]), live[-1])
claim("no escapes", b"\x1b" not in run.shown, run.shown)
claim("columns", all(columns_of(line) < 120 for line in live), live)
claim("ends the line", re.search(rb"[^\r\n]\r\nterm1: step 60, ", run.shown), run.shown[-300:])

run = Run("--out", "term2", "--steps", "60", columns=40, LC_ALL="C.UTF-8")
run.end()
live = [line for line in re.split(rb"[\r\n]+", run.shown) if line.startswith(b" step ")]
claim("narrow", live and all(columns_of(line) < 40 for line in live), live)
claim("narrow: what matters stays", live and b"60/60" in live[-1] and b"loss" in live[-1], live[-1:])
claim("heading in UTF-8", "mamba3 · 2 layers · 24.0 k parameters · byte tokens · cpu ".encode() in run.shown, run.shown[:200])

run = Run("--out", "term3", "--steps", "60", LC_ALL="C.UTF-8")
run.end()
claim("bar in UTF-8", "60/60 ▕████████████████▏ loss".encode() in run.shown, run.shown[-400:])

env = dict(os.environ, TERM="dumb")
master, slave = pty.openpty()
process = subprocess.Popen([krait, "train", *tiny, "--out", "term5", "--steps", "60"], stdin=slave, stdout=slave,
                           stderr=slave, env=env)
os.close(slave)
shown = b""
while True:
    try:
        more = os.read(master, 65536)
    except OSError:
        break
    if not more:
        break
    shown += more
process.wait(30)
claim("dumb terminal", b"\r" not in shown.replace(b"\r\n", b"") and re.search(rb"^step 50/60", shown, re.M), shown)

run = Run("--out", "term6", "--steps", "100000", "--eval-every", "100000")
run.read(until=b"\r step")
time.sleep(0.3)
os.write(run.master, b"\x03")
status = run.end()
claim("Ctrl-C: status", status == 0, status)
claim("Ctrl-C: words", re.search(rb"\r\nsaving term6 \(step \d+\) \.\.\. done\. Resume with: krait train --resume term6\r\n$", run.shown),
      run.shown[-200:])
claim("Ctrl-C: report", os.path.exists("term6/report.html"))
