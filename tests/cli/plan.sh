# plan.sh - krait plan: its report, its JSON, its measured steps, its simulation, and what it refuses.

plan_model=tests/golden/official_lm/mamba2

# of_plan NAME CONDITION OPTION... - krait plan --json succeeds, and the condition holds; in Python's words: d is the object,
# plans[SHARD, RECOMPUTE] its plans.
of_plan() {
    local name=$1 condition=$2 why
    shift 2
    run plan --json "$@"
    if [ $rc != 0 ] || [ -s "$err" ]; then
        fail "plan --json, $name" "exit status $rc: $(head -n 3 "$err")"
    elif ! why=$(python3 - "$out" "$condition" 2>&1 <<'END'
import json, sys
d = json.load(open(sys.argv[1], encoding="ascii"))
plans = {(p["shard"], p["recompute"]): p for p in d["plans"]}
assert len(plans) == len(d["plans"]), "a plan is there twice"
near = lambda a, b, part=1e-9: abs(a / b - 1) <= part
assert eval("(" + sys.argv[2] + ")"), json.dumps(d, indent=1)
END
    ); then
        fail "plan --json, $name" "$why"
    else
        pass
    fi
}

if command -v python3 >/dev/null; then
    of_plan 'a published name' 'd["family"] == "mamba2" and d["parameters"] == 128989632 and
        set(plans) == {(s, r) for s in ("none",
        "optimizer", "gradients") for r in (0, 24)} and d["recommended"] == "optimizer" and
        d["exact_ranks"] == [64, 32, 16, 8, 4, 2, 1]' \
        --model mamba2-130m --gpus 64
    of_plan 'mamba-1 has another vocabulary' 'd["family"] == "mamba1" and d["parameters"] == 129135360' --model mamba-130m
    of_plan 'rates' 'd["rate"] == 2e12 and near(d["nic_bytes"], 2 * 25e9 * 0.9 / 8) and d["link_bytes"] == 100e9 and
        d["hosts"] == 4' \
        --model mamba2-130m --gpus 16 --per-host 4 --nic 25G --nics 2 --link 100 --rate 2
    of_plan 'the options of a step' 'd["micro_batches"] == 12 and d["tokens"] == 12 * 512 and
        d["is_exact"] is False and d["exact_ranks"]
        == [12, 6, 3, 1]' --model $plan_model --gpus 4 --tokens 512 --length 64 --micro-batches 12
    parameters=$("$krait" info $plan_model --json | sed -nE 's/.*"parameters": ([0-9]+).*/\1/p')
    of_plan 'a folder is its config' "d['parameters'] == $parameters" \
        --model $plan_model
    of_plan 'shape options' 'd["family"] == "mamba3" and "--mimo-rank 4" in d["command"] and
        "--family mamba3" in d["command"]' \
        --family mamba3 --d-model 64 --mimo-rank 4
    of_plan 'bf16 halves sums' 'near(d["sum_bytes"], 2 * d["parameters"])' --model mamba2-130m --reduce-dtype bf16
    # 43 GB of weights, gradients and optimizer do not fit in 40 GiB; with the optimizer in shares some layers are recomputed
    of_plan 'memory' 'd["recommended"] == "optimizer" and plans["gradients", 0]["fits"] and
        not plans["optimizer", 0]["fits"] and
        not plans["none", 64]["fits"] and plans["optimizer", 64]["fits"] and "--memory-budget" in d["command"] and
        len(plans) == 7 and all(p["fits"] == (p["memory"] <= d["memory"]) for p in d["plans"])' \
        --model mamba2-2.7b --memory 40GiB --tokens 4096
    of_plan 'one GPU' 'd["recommended"] == "none" and set(plans) == {("none", 0), ("none", 24)} and
        d["exact_ranks"] == [1]' \
        --model mamba2-130m --gpus 1
    of_plan 'the fewest recomputed layers that fit' 'len(plans) == 3 and sorted(r for s, r in plans)[1] > 0 and d["memory"] -
        plans["none", sorted(r for s, r in plans)[1]]["memory"] <
        (plans["none", 0]["memory"] - plans["none", 64]["memory"]) / 60' \
        --model mamba2-2.7b --memory 128GiB --shard none
    of_plan 'one shard and
        all layers' 'list(plans) == [("gradients", 24)]' --model mamba2-130m --gpus 64 --shard gradients --recompute
    of_plan 'a simulation' 'near(d["simulation"]["step"], d["simulation"]["formula"], 0.05) and
        d["simulation"]["wait"] < 1e-9' \
        --model mamba2-130m --gpus 64 --simulate
    of_plan 'slow ranks' 'd["simulation"]["slowest_rank"] == 5 and
        near(d["simulation"]["slowest"], 2 * plans["none", 0]["compute"]) and
        d["simulation"]["shard"] == "optimizer" and
        d["simulation"]["step"] > 2 * plans["none", 0]["compute"]' --model mamba2-130m --simulate --slow 3:1.5 --slow 5:2
    of_plan 'weights gathered ahead' 'near(plans["optimizer", 0]["exposed"] - plans["none", 0]["exposed"],
        2 * 3 * 15e-6, 1e-6)' \
        --model mamba2-130m --gpus 64 --gather-ahead
    of_plan 'direct exchange' 'near(d["nic_traffic"], 8 * 7 / 8 * 8 * d["parameters"]) and
        near(d["link_traffic"], 7 / 64 * 8 * d["parameters"])' \
        --model mamba2-130m --gpus 64 --direct
    of_plan 'hosts without a power of two' 'near(d["nic_traffic"], 6 * 9 / 10 * 8 * d["parameters"])' \
        --model mamba2-130m --gpus 60 --per-host 6
    of_plan 'two levels' 'near(d["nic_traffic"], 7 / 8 * 8 * d["parameters"]) and "--reduce" not in d["command"]' \
        --model mamba2-130m --gpus 64
    of_plan 'fast sums' 'd["is_exact"] is False and
        "--reduce fast" in d["command"]' --model mamba2-130m --gpus 64 --reduce fast
    of_plan 'the embedding split' 'plans["none", 0]["last"] > 0 and d["sum_bytes"] > 4 * d["parameters"]' \
        --model mamba2-130m --split-embedding --distinct 9000
    # an H200 is what docs/perf.md has of it
    while IFS='|' read -r _ name products _ _ rate gib _; do
        [[ $name == *130m/mamba* && $products == *bf16* ]] || continue
        of_plan "an H200,$name" "d['rate'] == $rate * 1e12 and abs(plans['none', 0]['memory'] / 2**30 - $gib) < 1e-6" \
            --family "$(tr -d ' ' <<<"${name#*/}")" --d-model 768 --layers 24 --vocab 50288 --gpus 1
    done < <(sed -n '/^### Training on a GPU/,/^$/p' docs/perf.md)
    # three real steps: the rate is that of the second and third
    of_plan 'measured steps' 'len(d["measured"]["seconds"]) == 3 and d["measured"]["memory"] > 16 * d["parameters"] and
        near(plans["none", 0]["compute"], sum(d["measured"]["seconds"][1:]) / 2, 1e-6) and
        "ref" in d["measured"]["machine"]' \
        --model $plan_model --gpus 2 --tokens 128 --length 64 --device measured --isa ref --threads 1
    of_plan 'measured steps of recomputed layers' 'list(r for s, r in plans) and near(d["plans"][0]["compute"],
        sum(d["measured"]["seconds"][1:]) / 2, 1e-6)' \
        --model $plan_model --gpus 1 --tokens 128 --length 64 --device measured --recompute
else
    skip plan_json "no python3 to read JSON with"
fi

quiet 'plan for people' plan --model mamba2-130m --gpus 64 --nics 8 --simulate
for line in '^model +mamba2, 24 layers, d_model 768, 129 M parameters \(128989632\)$' \
    '^work +0.841 GFLOP a token, 13.79 TFLOP a step' \
    '^cluster +8 hosts, 8 GPUs each; 370 GB/s between GPUs, 8 x 400G = 360 GB/s between hosts$' \
    '^same bits as 1 GPU +yes; with 64 micro-batches on 64, 32, 16, 8, 4, 2, 1$' '^\* optimizer +0 .* 9[0-9] % ' \
    '^mpirun -n 64 --map-by ppr:8:node --bind-to none krait train '; do
    if grep -qE -- "$line" "$out"; then pass
    else fail "plan for people" "no line like $line in"$'\n'"$(head -n 30 "$out")"; fi
done
# every option of the recommended command is one of krait train
run plan --model mamba2-2.7b --gpus 64 --memory 64GiB --reduce fast --mlp 100 --residual multi-gate --schedule 0,1,1,0 --layers 2
options=$(tail -n 1 "$out" | grep -oE -- '--[a-z-]+' | grep -vE '^--(map-by|bind-to)$' | sort -u)
"$krait" train --help >"$out"
for option in $options; do
    if grep -qE -- "^  (-., )?$option( |$)" "$out"; then pass; else fail "plan, its command" "krait train has no $option"; fi
done
quiet 'one host' plan --model mamba2-130m --gpus 8
if grep -qE '^krait launch -n 8 -- train ' "$out"; then pass; else fail "plan, one host" "$(tail -n 1 "$out")"; fi
quiet 'too large' plan --model mamba2-2.7b --memory 8GiB
if grep -q '^Nothing fits in 8.00 GiB: use fewer --tokens, or GPUs with more memory.$' "$out"; then pass
else fail "plan, too large" "$(tail -n 4 "$out")"; fi

gives 'plan without a model' 2 '^krait: plan: --model is missing$' plan
gives 'plan, a name' 2 \
    "^krait: plan: --model is 'mamba2-99b', but must be a published name, or a folder or file that exists$" \
    plan --model mamba2-99b
gives 'plan, names' 2 'the names are mamba-130m, .* mamba2-2.7b$' plan --model mamba2-99b
gives 'plan, hosts' 2 '^krait: plan: --gpus is 12, but must be a multiple of --per-host 8$' \
    plan --model mamba2-130m --gpus 12
gives 'plan, micro-batches' 2 '^krait: plan: --micro-batches is 12, but must be a multiple of --gpus 8$' \
    plan --model mamba2-130m --micro-batches 12
gives 'plan, rows' 2 '^krait: plan: --tokens is 1000, but must be a multiple of --length 33$' \
    plan --model mamba2-130m --tokens 1000 --length 33
gives 'plan, nic' 2 "^krait: plan: --nic is '400', but must be bits/s with a unit, such as 400G or 800M$" \
    plan --model mamba2-130m --nic 400
gives 'plan, link' 2 '^krait: plan: --link is 0, but must be above 0$' plan --model mamba2-130m --link 0
gives 'plan, rate' 2 '^krait: plan: --rate is 0, but must be above 0$' plan --model mamba2-130m --rate 0
gives 'plan, memory' 2 "^krait: plan: --memory is '80 apples', but must be a size such as 25MB or 80GiB$" \
    plan --model mamba2-130m --memory '80 apples'
gives 'plan, two kinds of sums' 2 '^krait: plan: --direct is for ordered sums, not for --reduce fast$' \
    plan --model mamba2-130m --direct --reduce fast
gives 'plan, two rates' 2 '^krait: plan: --rate and --device measured are two sources of one number$' \
    plan --model mamba2-130m --rate 3 --device measured
gives 'plan, slow' 2 "^krait: plan: --slow is '3', but must be a rank and a factor above 0, such as 3:1.5$" \
    plan --model mamba2-130m --simulate --slow 3
gives 'plan, a slow rank' 2 "^krait: plan: --slow is '8:2', but ranks of --gpus 8 are from 0 to 7$" \
    plan --model mamba2-130m --simulate --slow 8:2
gives 'plan, no simulation' 2 '^krait: plan: --slow has no effect without --simulate$' plan --model mamba2-130m --slow 3:2
gives 'plan, no steps' 2 '^krait: plan: --steps has no effect without --simulate$' plan --model mamba2-130m --steps 9
gives 'plan, no split' 2 '^krait: plan: --distinct has no effect without --split-embedding$' \
    plan --model mamba2-130m --distinct 9
gives 'plan, not measured' 2 '^krait: plan: --threads has no effect without --device measured$' \
    plan --model mamba2-130m --threads 1
gives 'plan, jitter' 1 '^krait: plan: jitter = 3, but must be from 0 to 0.5$' plan --model mamba2-130m --simulate --jitter 3
gives 'plan, a shape' 1 '^krait: plan: per_head_dim = 33 does not divide d_inner = 1536$' \
    plan --model mamba2-130m --head-dim 33
gives 'plan, many ranks' 1 \
    '^krait: plan: ranks = 131072, but must be at most 65536; a plan without a simulation takes more$' \
    plan --model mamba2-130m --gpus 131072 --simulate
gives 'plan, another family' 2 '^krait: plan: --family differs from that of mamba2-130m, mamba2$' \
    plan --model mamba2-130m --family mamba3
