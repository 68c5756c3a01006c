# check.sh - krait check --json: one object for every kind of check, and of one that cannot run.

check_lm=tests/golden/official_lm/mamba2
# json NAME STATUS CONDITION OPTION... - krait check --json ends with this status and prints one JSON object, for which the
# condition holds; in Python's words: d is the object, rows are its checks, of(OUTCOME) counts them.
json() {
    local name=$1 status=$2 condition=$3 why
    shift 3
    run check --json "$@"
    if [ $rc != "$status" ]; then
        fail "check --json, $name" "exit status $rc, expected $status"
    elif ! why=$(python3 - "$out" "$condition" 2>&1 <<'END'
import json, math, sys

def refuse(word):
    raise ValueError(word + " is not JSON")

d = json.load(open(sys.argv[1], encoding="ascii"), parse_constant=refuse)
rows = d["checks"]
of = lambda outcome: sum(r["outcome"] == outcome for r in rows)
assert list(d) == ["version", "checks", "passed", "failed", "skipped", "status", "message"], list(d)
assert [of("passed"), of("failed"), of("skipped")] == [d["passed"], d["failed"], d["skipped"]], "counts"
for r in rows:
    assert list(r) == ["outcome", "check", "isa", "kernel", "error", "limit", "text"], list(r)
    if r["outcome"] == "passed":
        assert r["error"] <= r["limit"], r
assert eval(sys.argv[2]), d
END
    ); then
        fail "check --json, $name" "$why"
    else
        pass
    fi
}

if command -v python3 >/dev/null; then
    json machine 0 'd["status"] == "ok" and d["message"] is None and of("passed") > 5 and of("failed") == 0 and "ref" in [r["isa"] for r in rows]' \
        --isa ref
    json ops 0 'of("passed") > 9 and of("failed") + of("skipped") == 0' --isa ref --ops tests/golden/ops.safetensors
    json model 0 'of("passed") == 5 and rows[-1]["limit"] == 0' --model $check_lm
    json against 0 'of("passed") > 9 and "logits" in [r["check"] for r in rows]' --model $check_lm --against $check_lm/io.safetensors
    sed 's/"logits"/"logitz"/' $check_lm/io.safetensors >"$work/io.safetensors"
    json skipped 0 'of("skipped") == 1 and [r["error"] for r in rows if r["outcome"] == "skipped"] == [None]' \
        --model $check_lm --against "$work/io.safetensors"
    json failed 1 'of("failed") > 0 and all(r["error"] > r["limit"] == 1e-12 for r in rows if r["outcome"] == "failed")' \
        --model $check_lm --tolerance 1e-12 --grad-tolerance 1e-12
    json arguments 1 'd["status"] == "arg" and "isa is \x27none\x27" in d["message"] and rows == []' --isa none
    json no_folder 1 'd["status"] == "io" and "cannot open" in d["message"]' --model no/such
else
    skip check_json "no python3 to read JSON with"
fi
gives "check --record --json" 2 '^krait: check: --record prints the table of the built-in cases; it cannot be combined with --json$' check --record --json
gives "check --record --model" 2 'it cannot be combined with --model$' check --record --model $check_lm
