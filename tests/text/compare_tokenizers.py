"""compare_tokenizers.py KRAIT FOLDER - what tests/text/compare_tokenizers runs."""
import glob
import json
import os
import random
import subprocess
import sys
import time
import unicodedata

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

krait, folder = sys.argv[1:3]
random.seed(5)
passed = failed = skipped = 0

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_level(regex, space=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=space, use_regex=regex)


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def sequence(*parts):
    return pre_tokenizers.Sequence(list(parts))


# ---- texts ----

files = sorted(glob.glob("docs/*.md") + glob.glob("*.md") + glob.glob("include/krait/*.h") + glob.glob("src/*/*.[ch]"))
corpus = [open(name, encoding="utf-8").read() for name in files]

# Characters that every table of Unicode has: those of version 3.2. Newer ones depend on how new a library is.
old = unicodedata.ucd_3_2_0
assigned = [c for c in range(1, sys.maxunicode + 1) if old.category(chr(c)) not in ("Cn", "Cs", "Co")]
by_kind = {}
for c in assigned:
    by_kind.setdefault(old.category(chr(c)), []).append(c)
spaces = [c for c in assigned if chr(c).isspace()] + [0x180E, 0x200B, 0xFEFF]


def random_text(length):
    """Mostly ASCII, with runs out of one kind of character, marks and white space."""
    text = ""
    while len(text) < length:
        kind = random.random()
        if kind < 0.3:
            text += "".join(chr(random.randrange(32, 127)) for _ in range(random.randrange(1, 8)))
        elif kind < 0.5:
            text += "".join(chr(random.choice(spaces)) for _ in range(random.randrange(1, 5)))
        elif kind < 0.6:
            text += chr(random.choice(assigned))
        elif kind < 0.7:
            text += random.choice(["e\u0301", "o\u0308\u0323", "\u1100\u1161\u11a8", "\uac00\u11a8", "\u0958", "\u212b", "\u0344"])
        else:
            group = by_kind[random.choice(list(by_kind))]
            text += "".join(chr(random.choice(group)) for _ in range(random.randrange(1, 5)))
    return text


words = ["I'm", "you'LL", "we'Ve", "it's", "IT'S", "don't", "'tis", "they're", "''s", "\u017f", "'\u017f", "x'\u017fy", "foo_bar", "1234567", "\u0661\u0662\u0663", "\u00b2\u00bd", "a1b22c333"]
texts = {
    "files": corpus[:40],
    "lines": [line for text in corpus[:6] for line in text.splitlines()],
    "random Unicode": [random_text(random.randrange(1, 120)) for _ in range(3000)],
    "single characters": ["".join(map(chr, assigned[i : i + 50])) for i in range(0, len(assigned), 50)] + [chr(c) for c in spaces],
    "words": words + [" ".join(random.choices(words, k=9)) for _ in range(200)],
    "white space": ["".join(random.choices(" \t\n\r\u3000x", k=random.randrange(1, 40))) for _ in range(2000)] + [" " * n + "x" * (n % 2) for n in range(70)],
    "other scripts": ["\u4f60\u597d\uff0c\u4e16\u754c\u3002", "\u3053\u3093\u306b\u3061\u306f \u4e16\u754c", "\uc548\ub155\ud558\uc138\uc694", "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!", "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645", "\u0928\u092e\u0938\u094d\u0924\u0947", "\U0001f600\U0001f44d\U0001f3fd \U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001d573\U0001d58a", "\u1820\u180e\u1821"],
    "long pieces": ["a" * 5000, "ab" * 3000, "x" + " " * 4000 + "y", "9" * 3001, "!" * 3000, "\u00e9" * 2000, "\n" * 2000],
    "empty": ["", " ", "\n", "a"],
}
pieces = ["<|endoftext|>", "<|begin_of_text|>", "<|begin_of_text", "  ", "   ", "word", "sub", "subword", "[STRIP]", "[LEFT]", " ", "\n", "x", "_", "e\u0304\u0301", "\u1e17te", "\u1e17t!", "\u200d", "A", ",", "\u3000", "aaaa", "aaab"]
texts["added tokens"] = ["".join(random.choices(pieces, k=random.randrange(1, 12))) for _ in range(4000)]


# ---- tokenizers ----


def train(pre, normalizer=None, added=(), **model):
    tok = Tokenizer(models.BPE(**model))
    tok.pre_tokenizer = pre
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=4000,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>", "<|padding|>"],
        show_progress=False,
    )
    tok.train_from_iterator(corpus, trainer)
    if normalizer:
        tok.normalizer = normalizer
    tok.add_tokens(list(added))
    return tok


many = [
    AddedToken("  ", normalized=True),
    AddedToken("   ", normalized=True),
    AddedToken("word", single_word=True),
    AddedToken("sub", normalized=False),
    AddedToken("subword", normalized=False),
    AddedToken("[STRIP]", lstrip=True, rstrip=True, normalized=False),
    AddedToken("[LEFT]", lstrip=True, single_word=True, normalized=True),
    AddedToken("\u1e17t!", normalized=True),
    AddedToken("e\u0304\u0301te", normalized=True),
    AddedToken("aaaaaaaab", normalized=False),
]
kinds = {
    "gpt-neox": train(byte_level(True), normalizers.NFC(), [AddedToken(" " * n, normalized=True) for n in range(2, 25)]),
    "llama-3": train(sequence(split(LLAMA3), byte_level(False)), ignore_merges=True),
    "o200k": train(sequence(split(O200K), byte_level(False))),
    "falcon": train(sequence(pre_tokenizers.Punctuation("contiguous"), byte_level(True), pre_tokenizers.Digits(False), split("[0-9][0-9][0-9]"))),
    "digits": train(sequence(pre_tokenizers.Digits(True), byte_level(True, True)), normalizers.Sequence([normalizers.NFC()])),
    "removed": train(sequence(split(LLAMA3, "removed", True), byte_level(False))),
    "previous": train(sequence(split(r"\s", "merged_with_previous"), byte_level(False, True))),
    "next": train(sequence(split(r"\p{Lu}|\d|\b", "merged_with_next"), byte_level(False))),
    "contiguous": train(sequence(split(r"\w", "contiguous"), pre_tokenizers.Split(" ", "removed"), byte_level(False))),
    "classes": train(sequence(split(r"\h+|[^\S\n]|\W|\p{Greek}{,3}|^#+.*$|(?m:<.>)"), byte_level(False))),
    "added": train(byte_level(True), normalizers.NFC(), many),
    "added, no normalizer": train(byte_level(True), None, many),
    "unknown bytes": None,
}
kinds["llama-3"].add_special_tokens(["<|begin_of_text|>"] + [f"<|reserved_special_token_{i}|>" for i in range(20)])
kinds["llama-3"].post_processor = processors.Sequence(
    [processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", kinds["llama-3"].token_to_id("<|begin_of_text|>"))])]
)
kinds["added"].post_processor = processors.TemplateProcessing(single="<|endoftext|> $A <|padding|> <|endoftext|>", special_tokens=[("<|endoftext|>", 0), ("<|padding|>", 1)])


def without_bytes(fuse):
    """Bytes above 0x7f have no tokens of their own. Without added tokens beyond the two: their ids would have to move."""
    data = json.loads(kinds["gpt-neox"].to_str())
    high = {c for c in pre_tokenizers.ByteLevel.alphabet() if len(c.encode()) > 1} - {"\u0120", "\u010a"}
    model = data["model"]
    model["unk_token"], model["fuse_unk"] = "<|padding|>", fuse
    model["vocab"] = {word: number for word, number in model["vocab"].items() if not set(word) & high}
    data["added_tokens"] = data["added_tokens"][:2]
    model["vocab"] = {word: number for number, word in enumerate(model["vocab"])}
    model["merges"] = [m for m in model["merges"] if not set("".join(m)) & high]
    return Tokenizer.from_str(json.dumps(data))


kinds["unknown bytes"] = without_bytes(False)
kinds["unknown bytes, fused"] = without_bytes(True)


# ---- comparison ----


def run(path, records, *options):
    data = b"".join(record + b"\0" for record in records)
    result = subprocess.run([krait, "tokenize", "-t", path, "--zero", *options], input=data, capture_output=True)
    if result.returncode:
        raise RuntimeError(result.stderr.decode())
    return result.stdout


def check(name, good, why):
    global passed, failed
    passed, failed = passed + bool(good), failed + (not good)
    if not good:
        print(f"FAIL {name}: {why}")


def first_difference(ours, theirs, inputs):
    if len(ours) != len(theirs):
        return f"{len(ours)} results, want {len(theirs)}"
    for got, want, text in zip(ours, theirs, inputs):
        if got != want:
            return f"{text[:80]!r} gives {str(got)[:300]}, want {str(want)[:300]}"
    return None


def compare(name, tok, path, group, inputs):
    for bare in (False, True):
        want = [encoding.ids for encoding in tok.encode_batch(inputs, add_special_tokens=not bare)]
        got = [list(map(int, line.split())) for line in run(path, [t.encode() for t in inputs], *(["--bare"] if bare else [])).decode().split("\n")[:-1]]
        why = first_difference(got, want, inputs)
        check(f"{name}, {group}: ids{' without special ones' if bare else ''}", not why, why)
    ids = [" ".join(map(str, one)).encode() for one in want]
    decoded = run(path, [b"\n".join(ids)], "--decode").split(b"\0")[:-1] if ids else []
    # a text of tokens cut inside a character is told apart from ours only by its replacement characters
    why = first_difference([d.decode("utf-8", "replace") for d in decoded], tok.decode_batch(want, skip_special_tokens=False), inputs)
    check(f"{name}, {group}: texts", not why, why)


for name, tok in kinds.items():
    path = os.path.join(folder, "tokenizer.json")
    tok.save(path)
    for group, inputs in texts.items():
        compare(name, tok, path, group, inputs)
    # merges in the older spelling, one string for each
    data = json.loads(open(path).read())
    data["model"]["merges"] = [" ".join(m) if isinstance(m, list) else m for m in data["model"]["merges"]]
    with open(path, "w") as file:
        json.dump(data, file)
    compare(name + ", merges as strings", tok, path, "lines", texts["lines"])
    tok.encode_special_tokens = True
    got = run(path, [t.encode() for t in texts["added tokens"]], "--plain").decode().split("\n")[:-1]
    want = [" ".join(map(str, encoding.ids)) for encoding in tok.encode_batch(texts["added tokens"])]
    why = first_difference(got, want, texts["added tokens"])
    check(f"{name}: special tokens as plain text", not why, why)
    tok.encode_special_tokens = False

# ---- speed, of one thread, for information ----

os.environ["TOKENIZERS_PARALLELISM"] = "false"
size = sum(len(text.encode()) for text in corpus)


def speed_of_theirs(path):
    second = Tokenizer.from_file(path)
    begin = time.process_time()
    for text in corpus:
        second.encode(text)
    return size / (time.process_time() - begin) * 1e-6


def speed_of_ours(path):
    command = [krait, "tokenize", "-t", path, "-0", "--stats"]
    result = subprocess.run(command, input="\0".join(corpus).encode(), capture_output=True)
    return float(result.stderr.decode().split()[-2])


for name in ("gpt-neox", "llama-3"):
    path = os.path.join(folder, "tokenizer.json")
    kinds[name].save(path)
    ours, theirs = (max(speed(path) for _ in range(3)) for speed in (speed_of_ours, speed_of_theirs))
    print(f"{name}: {size} bytes, krait {ours:.1f} MB/s, tokenizers {tokenizers.__version__} {theirs:.1f} MB/s")

print(f"{passed} passed, {failed} failed, {skipped} skipped")
sys.exit(failed != 0)
