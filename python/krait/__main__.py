"""python -m krait: the program krait of this package."""

import os
import sys

from ._program import environment, find_program

try:
    program = find_program()
except FileNotFoundError as error:
    sys.exit(f"krait: {error}")
os.execve(program, ["krait", *sys.argv[1:]], environment())
