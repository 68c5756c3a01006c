"""nfc_vectors.py [all] - lines of "TEXT NFC" in hexadecimal UTF-8, from Python's unicodedata.

Every character that NFC changes, then strings of characters that matter, drawn at random. Without `all` only characters of
Unicode 3.2, which all tables have. The first line tells which version of Unicode Python has.
"""
import random
import sys
import unicodedata

old = unicodedata.ucd_3_2_0
takes_all = sys.argv[1:] == ["all"]
chars = [chr(c) for c in range(1, sys.maxunicode + 1) if not 0xD800 <= c < 0xE000]
if not takes_all:
    chars = [c for c in chars if old.category(c) != "Cn"]


def put(text):
    print(text.encode().hex(), unicodedata.normalize("NFC", text).encode().hex())


print(unicodedata.unidata_version)
for c in chars:
    if unicodedata.normalize("NFC", c) != c:
        put(c)
print("-")
random.seed(1)
marks = [c for c in chars if unicodedata.combining(c)]
parts = sorted({p for c in chars for p in unicodedata.normalize("NFD", c) if unicodedata.normalize("NFD", c) != c})
composed = [c for c in chars if unicodedata.decomposition(c) and not unicodedata.decomposition(c).startswith("<")]
jamo = [chr(c) for c in (0x1100, 0x1112, 0x1161, 0x1175, 0x11A7, 0x11A8, 0x11C2, 0xAC00, 0xAC01, 0xD788, 0xD7A3)]
for _ in range(30000):
    kinds = random.choices([marks, parts, composed, jamo, "ae \u4e2d", chars], [4, 4, 3, 1, 2, 1], k=random.randrange(1, 12))
    put("".join(random.choice(kind) for kind in kinds))
for n in (17, 100, 1000):  # long runs of marks are sorted another way
    put("a" + "".join(random.choice(marks) for _ in range(n)) + "b")
