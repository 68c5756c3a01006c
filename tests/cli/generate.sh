# generate.sh - krait generate: what it prints for each option, and what it says when it cannot.
official=tests/golden/official_lm
model=$official/mamba2
prompt="17 4 200 31 7 7 90 250"
ids() { run generate "$model" --ids -p "$prompt" "$@"; }
ids_quiet() { # NAME OPTION... - the ids that come of the usual prompt; in $got
    local name=$1
    shift
    quiet "$name" generate "$model" --ids -p "$prompt" "$@"
    got=$(cat "$out")
}
distinct() { tr ' ' '\n' <<<"$1" | sort -n | uniq -d | wc -l; }

# ---- the most probable tokens ----

# One token at a time, each from a prompt that is read anew, is what the steps must agree with.
steps=12
[ "${KR_TEST_QUICK-0}" = 0 ] || steps=4
for model in "$official"/*; do
    name=${model##*/}
    ids_quiet "greedy/$name" -n $steps
    want=
    for ((i = 0; i < steps; i++)); do
        run generate "$model" --ids -p "$prompt $want" -n 1
        want="$want $(cat "$out")"
    done
    equal "greedy/$name" "$got" "${want# }"
done
model=$official/mamba2

# What Hugging Face's generate made of its own models; the end of text is never chosen there.
for io in {tests,../shared}/golden/hf_*/*/io.safetensors; do
    [ -e "$io" ] || continue
    folder=${io%/*}
    mapfile -t all < <(tensor "$io" gen_ids d8)
    eos=$(grep -oE '"eos_token_id": *[0-9]+' "$folder/config.json" | grep -oE '[0-9]+$')
    row=$((${#all[@]} / 2))
    for at in 0 $row; do
        quiet "hf/$folder" generate "$folder" --ids -p "${all[*]:at:12}" -n 16 --logit-bias "$eos=-inf"
        equal "hf/$folder" "$(cat "$out")" "$(echo ${all[*]:at+12:16})"
    done
    hf=$folder
done
[ -n "${hf-}" ] || skip generate/hf "no golden models of Hugging Face"

ids_quiet plain -n 20
greedy=$got
for options in "--greedy" "--temperature 0" "--top-k 1" "--top-k 1 --temperature 3 --seed 9" "--top-p 0.0000001" "--min-p 1" \
    "--threads 1" "--isa ref" "--prefill-chunk 1" "--prefill-chunk 3" "--low-memory" "--dtype f32" "--repetition-penalty 1" \
    "--dtype stored" "--ignore-eos" "--temperature 0 --top-k 7 --top-p 0.9 --min-p 0.1"; do
    ids_quiet "equals greedy: $options" -n 20 $options
    equal "equals greedy: $options" "$got" "$greedy"
done
equal count "$(wc -w <<<"$greedy")" 20
quiet default_count generate "$model" --ids -p "$prompt"
equal default_count "$(wc -w <"$out")" 256
ids_quiet no_tokens -n 0
equal no_tokens "$got" ""
for dtype in bf16 f16; do
    ids -n 3 --dtype $dtype --stats
    equal "dtype $dtype" "$rc $(grep -cE "^model .*, $dtype\$" "$err")" "0 1"
done

# ---- draws ----

ids_quiet draws -n 30 --temperature 1
drawn=$got
for options in "--seed 0 --temperature 1" "--temperature 1 --threads 1" "--temperature 1 --top-k 0 --top-p 1 --min-p 0" \
    "--temperature 1 --low-memory"; do
    ids_quiet "equals draws: $options" -n 30 $options
    equal "equals draws: $options" "$got" "$drawn"
done
for options in "--seed 1 --temperature 1" "--temperature 1.3" "--top-k 5" "--top-p 0.5" "--min-p 0.5" "--greedy"; do
    ids_quiet "differs from draws: $options" -n 30 $options
    if [ "$got" = "$drawn" ]; then fail "differs from draws: $options"; else pass; fi
done
ids_quiet samples -n 30 --samples 3
equal samples "$(wc -l <"$out")" 3
equal "the first sample" "$(head -n 1 "$out")" "$drawn"
equal "samples differ" "$(sort -u "$out" | wc -l)" 3

# ---- penalties and biases ----

for penalty in --repetition-penalty --presence-penalty --frequency-penalty; do
    ids_quiet $penalty -n 30 $penalty 1000000
    equal $penalty "$(distinct "$got")" 0
done
ids_quiet "repetition of the prompt" -n 30 --repetition-penalty 1000000
equal "repetition of the prompt" "$(distinct "17 4 200 31 7 90 250 $got")" 0
ids_quiet "negative presence penalty" -n 6 --presence-penalty -1000
equal "negative presence penalty" "$(tr ' ' '\n' <<<"$got" | sort -u | wc -l)" 1
ids_quiet bias -n 4 --logit-bias 65=1000 --logit-bias 66=999
equal bias "$got" "65 65 65 65"
ids_quiet "two biases" -n 4 --logit-bias 65=1000 --logit-bias 66=2000
equal "two biases" "$got" "66 66 66 66"
ids_quiet ban -n 20 --logit-bias "${greedy%% *}=-inf"
if grep -qw "${greedy%% *}" <<<"$got"; then fail ban "$got"; else pass; fi

# ---- ends ----

third=$(cut -d ' ' -f 3 <<<"$greedy")
want=$(sed -E "s/( |^)$third .*/\1$third/" <<<"$greedy ")
ids_quiet stop_id -n 20 --stop-id "$third"
equal stop_id "$got" "$want"
ids_quiet stop_ids -n 20 --stop-id 255 --stop-id "$third"
equal stop_ids "$got" "$want"
ids_quiet endless --stop-id "$third" -n -1
equal endless "$got" "$want"
force="--logit-bias 66=1000 --frequency-penalty 1 --logit-bias 67=999.5 --logit-bias 68=998.25" # B C B C D B C D ...
quiet stop_text generate "$model" -p A -n 40 $force
whole=$(cat "$out")
quiet stop_text generate "$model" -p A -n 40 $force --stop xyz --stop CD
equal stop_text "$(cat "$out")" "${whole%%CD*}"
quiet stop_text_with_ids generate "$model" --ids -p 65 -n 40 $force --stop CD --tokenizer bytes
equal stop_text_with_ids "$(bytes $(cat "$out"))" "${whole%%CD*}CD"

# ---- text ----

quiet text generate "$model" -p "Krait" -n 20
cp "$out" "$work/text"
quiet text generate "$model" --ids -p "75 114 97 105 116" -n 20
# shellcheck disable=SC2046
bytes $(cat "$out") >"$work/want"
same "text is its tokens" "$work/text" "$work/want"
printf Krait >"$work/prompt"
quiet file generate "$model" -f "$work/prompt" -n 20
same file "$out" "$work/text"
"$krait" generate "$model" - -n 20 <"$work/prompt" >"$out" 2>"$err"
same stdin "$out" "$work/text"
quiet bytes generate "$model" -p Krait -n 20 --tokenizer bytes --no-bos --plain
same bytes "$out" "$work/text"
quiet echo generate "$model" -p Krait -n 20 --echo
printf Krait | cat - "$work/text" >"$work/want"
same echo "$out" "$work/want"
ids_quiet echo_ids -n 20 --echo
equal echo_ids "$got" "$prompt $greedy"
bytes 0 255 10 195 0 >"$work/prompt"
quiet any_bytes generate "$model" -f "$work/prompt" -n 5
cp "$out" "$work/text"
quiet any_bytes generate "$model" --ids -p "0,255, 10 195,0" -n 5
# shellcheck disable=SC2046
bytes $(cat "$out") >"$work/want"
same any_bytes "$work/text" "$work/want"
quiet text_samples generate "$model" -p Krait -n 3 --samples 2 --logit-bias 65=1000 --echo
equal text_samples "$(cat "$out")" $'--- sample 1\nKraitAAA\n--- sample 2\nKraitAAA'

# An empty prompt begins with what the model says a text begins with.
gives empty_prompt 1 "^krait: generate: the prompt is empty, and neither the model nor the tokenizer has" generate "$model" -p ""
gives empty_ids 1 "^krait: generate: the prompt is empty, and neither the model nor the tokenizer has" generate "$model" --ids -p " "
if [ -n "${hf-}" ]; then
    quiet empty_with_bos generate "$hf" -p "" -n 5 --ignore-eos --echo
    cp "$out" "$work/text"
    quiet empty_with_bos generate "$hf" --ids -p 0 -n 5 --ignore-eos
    # shellcheck disable=SC2046
    bytes $(cat "$out") >"$work/want"
    same empty_with_bos "$work/text" "$work/want"
    quiet eos generate "$hf" --ids -p "5 6" -n 20 --logit-bias 2=1000
    equal eos "$(cat "$out")" 2
    quiet ignore_eos generate "$hf" --ids -p "5 6" -n 3 --logit-bias 2=1000 --ignore-eos
    equal ignore_eos "$(cat "$out")" "2 2 2"
fi

# ---- log-probabilities ----

quiet logprobs generate "$model" -p A -n 20 --logprobs
first=$(sed -n 's/^1\t\([0-9]*\)\t.*/\1/p' "$out" | head -n 1)
logprob=$(sed -n '1s/^1\t[0-9]*\t\(-[0-9.]*\)\t.*/\1/p' "$out")
equal "logprobs: lines" "$(grep -cE $'^1\t[0-9]+\t-[0-9]+\\.[0-9]{6}\t".*"$' "$out")" 20
cut -f 2 "$out" | paste -sd ' ' >"$work/got"
run generate "$model" --ids -p 65 -n 20
same "logprobs: ids" "$work/got" "$out"
bytes 65 "$first" >"$work/prompt"
run eval "$model" --text "$work/prompt"
holds "logprobs: value" "$(sed -n 's/^nats.token *//p' "$out") + $logprob < 2e-6 && $(sed -n 's/^nats.token *//p' "$out") + $logprob > -2e-6"
for case in '65 "A"' '10 "\n"' '34 "\""' '92 "\\"' '0 "\x00"' '127 "\x7f"' '195 "\xc3"' '9 "\t"'; do
    run generate "$model" -p A -n 1 --logprobs --logit-bias "${case%% *}=1000"
    equal "logprobs: ${case#* }" "$(cut -f 2,4 "$out" | tr '\t' ' ')" "$case"
done
quiet "logprobs of ids" generate "$model" --ids -p 65 -n 2 --logprobs --samples 2
equal "logprobs of ids" "$(cut -f 1,4 "$out" | sort | uniq -c | tr -s ' \t' ' ')" $' 2 1 ""\n 2 2 ""'

# ---- states ----

# A run of 24 tokens in two parts, cut everywhere, is the run of 24: letters, draws, halves of characters, half a stop text.
split() { # NAME OPTION...
    local name=$1 n bad=
    shift
    run generate "$model" -p "A chat" -n 12 "$@"
    cp "$out" "$work/want"
    for n in 0 1 2 3 5 11; do
        run generate "$model" -p "A chat" -n $n --save-state "$work/state" "$@"
        cp "$out" "$work/got"
        run generate "$model" --load-state "$work/state" -n $((12 - n)) "$@"
        cat "$out" >>"$work/got"
        [ $rc = 0 ] && cmp -s "$work/got" "$work/want" || bad+=" $n"
    done
    if [ -n "$bad" ]; then fail "$name" "differs when cut after$bad tokens"; else pass; fi
}
split "state: greedy"
split "state: draws" --top-k 40 --seed 5
split "state: penalties" --repetition-penalty 1.5 --presence-penalty 0.5 --frequency-penalty 0.5
split "state: halves of characters" --temperature 1 --logit-bias 195=1000 --logit-bias 169=1000 --logit-bias 226=1000
split "state: half a stop text" $force --stop DDDDDDDDDDDDDDD --stop BCDEF
split "state: several samples" --samples 2 --logprobs --top-k 3

run generate "$model" --ids -p "$prompt" -n 6 --save-state "$work/state"
begun=$(cat "$out")
quiet "a prompt after a state" generate "$model" --ids -p "1 2 3" --load-state "$work/state" -n 6
more=$(cat "$out")
quiet "a prompt after a state" generate "$model" --ids -p "$prompt $begun 1 2 3" -n 6
equal "a prompt after a state" "$more" "$(cat "$out")"
run generate "$model" --ids -p "$prompt" -n 0 --save-state "$work/read"
quiet "only read" generate "$model" --ids --load-state "$work/read" -n 6
equal "only read" "$(cat "$out")" "$begun"

# ---- statistics ----

run generate "$model" -p Krait -n 5 --stats
equal "stats: status" $rc 0
equal "stats: stdout" "$(wc -c <"$out")" 5
for line in '^model +mamba2, 2 layers of width 64, 0\.[0-9]+ M parameters, f32$' '^machine +[a-z0-9]+, threads 2$' '^load +[0-9.]+ s$' \
    '^prompt +5 tokens, [0-9.]+ tokens/s$' '^first token +[0-9.]+ s after loading, [0-9.]+ s after the program began$' \
    '^generated +5 tokens, [0-9.]+ tokens/s$' '^finish +max tokens$' '^memory +[0-9.]+ MiB at most$'; do
    if grep -qE "$line" "$err"; then pass; else fail "stats: $line" "$(cat "$err")"; fi
done
memory() { sed -nE 's/^memory +([0-9.]+) .*/\1/p' "$err"; }
usual=$(memory)
run generate "$model" -p Krait -n 5 --stats --low-memory --threads 1 --isa ref --dtype bf16
holds "low memory" "$(memory) < $usual"
if grep -qE '^machine +ref, threads 1$' "$err" && grep -qE '^model .*, bf16$' "$err"; then pass; else fail "stats of options" "$(cat "$err")"; fi
run generate "$model" --ids -p 5 -n 5 --stats --stop-id 65 --logit-bias 65=1000
if grep -qE '^finish +stop id$' "$err" && grep -qE '^generated +1 tokens$' "$err"; then pass; else fail "stats: stop id" "$(cat "$err")"; fi

# ---- interrupts, readers that go, full disks ----

# interrupted OPTION... - runs the program, of endless input, until it has printed something, and then interrupts it.
interrupted() {
    : >"$out"
    set -m # or the program would be told to ignore interrupts
    "$krait" "$@" >"$out" 2>"$err" < <(yes) &
    set +m
    local pid=$! tries=0
    until [ -s "$out" ] || [ $((tries += 1)) = 300 ]; do sleep 0.1; done
    kill -INT $pid
    wait $pid
    rc=$?
}
interrupted generate "$model" --ids -p "$prompt" -n -1 --save-state "$work/state"
equal "interrupt: status" $rc 130
equal "interrupt: stderr" "$(cat "$err")" ""
done_so_far=$(cat "$out")
count=$(wc -w <<<"$done_so_far")
run generate "$model" --ids --load-state "$work/state" -n 5
rest=$(cat "$out")
if [ "$count" -lt 20000 ]; then
    run generate "$model" --ids -p "$prompt" -n $((count + 5))
    equal "interrupt: resumed" "$done_so_far $rest" "$(cat "$out")"
fi
rm -f "$work/state"
interrupted generate "$model" - --echo --save-state "$work/state"
equal "interrupt while reading: status" $rc 130
equal "interrupt while reading: stderr" "$(cat "$err")" "krait: interrupted before the prompt was read: $work/state was not written"
"$krait" generate "$model" --ids -p "$prompt" -n 100000 --save-state "$work/state" 2>"$err" </dev/null | head -c 20 >/dev/null
equal "a reader that goes: status" "${PIPESTATUS[0]}" 0
equal "a reader that goes: stderr" "$(cat "$err")" ""
if [ -s "$work/state" ]; then pass; else fail "a reader that goes: state" "was not written"; fi
if [ -c /dev/full ]; then
    "$krait" generate "$model" --ids -p "$prompt" -n 5 >/dev/full 2>"$err" </dev/null
    equal "full disk: status" $? 1
    equal "full disk: stderr" "$(cat "$err")" "krait: cannot write to stdout: no space left on device"
fi

# ---- complaints ----

usage() { gives "$1" 2 "$2" generate "${@:3}"; }
refuses() { gives "$1" 1 "$2" generate "${@:3}"; }
usage no_model '^krait: generate: MODEL is missing: a folder' -p A
usage no_prompt '^krait: generate: there is no prompt: give -p TEXT, -f FILE, or - ' "$model"
usage two_prompts '^krait: generate: -p, -f and - are three prompts: give one$' "$model" -p A -f B
usage a_word "^krait: generate: unexpected argument 'Hello'$" "$model" Hello
usage two_words "^krait: generate: unexpected argument 'more'$" "$model" - more
usage unknown '^krait: generate: unknown option --top$' "$model" -p A --top 3
usage greedy_and_warm '^krait: generate: --greedy and --temperature contradict' "$model" -p A --greedy --temperature 1
usage echo_logprobs '^krait: generate: --echo and --logprobs cannot be combined$' "$model" -p A --echo --logprobs
usage stop_ids_alone '^krait: generate: --stop with --ids needs --tokenizer' "$model" --ids -p 1 --stop A
usage ids_plain '^krait: generate: with --ids there is no text for --no-bos' "$model" --ids -p 1 --plain
usage bad_bias "^krait: generate: --logit-bias is '7', but must be ID=VALUE" "$model" -p A --logit-bias 7
usage bad_bias "^krait: generate: --logit-bias is '7=nan', but must be ID=VALUE" "$model" -p A --logit-bias 7=nan
usage bad_bias "^krait: generate: --logit-bias is 'x=1', but must be ID=VALUE" "$model" -p A --logit-bias x=1
usage bad_stop_id "^krait: generate: --stop-id is '256', but must be a token from 0 to 255$" "$model" -p A --stop-id 256
usage bad_stop_id "^krait: generate: --stop-id is 'A', but must be a token from 0 to 255$" "$model" -p A --stop-id A
usage bad_count "^krait: generate: --max-tokens is '-2', but must be a whole number of at least -1$" "$model" -p A -n -2
usage bad_temperature "^krait: generate: --temperature is '-1', but must be a number of at least 0$" "$model" -p A --temperature -1
usage bad_dtype "^krait: generate: --dtype is 'f8', but must be one of stored\|f32\|bf16\|f16$" "$model" -p A --dtype f8
usage bad_samples "^krait: generate: --samples is '0', but must be" "$model" -p A --samples 0
usage bad_top_p '^krait: generate: --top-p is 1.5, but must be above 0 and at most 1' "$model" -p A --top-p 1.5
usage bad_min_p '^krait: generate: --min-p is 1.5, but must be from 0 to 1' "$model" -p A --min-p 1.5
usage bad_penalty '^krait: generate: --repetition-penalty is 0, but must be above 0' "$model" -p A --repetition-penalty 0
refuses bad_bias_id '256' "$model" -p A --logit-bias 256=1
refuses bad_isa 'isa.*sse9|sse9.*isa' "$model" -p A --isa sse9
refuses no_folder '^krait: .*cannot open .*no/such/config.json: no such file or directory$' no/such -p A
refuses no_folder_remedy '^       a model folder holds config.json and model.safetensors' no/such -p A
refuses no_file '^krait: cannot open no/such: no such file or directory$' "$model" -f no/such
refuses a_folder '^krait: cannot read tests: is a directory$' "$model" -f tests
refuses no_tokenizer_file 'no/such' "$model" -p A --tokenizer no/such
refuses bad_id "^krait: the prompt: 'x3' is not a token id$" "$model" --ids -p "1 x3"
refuses negative_id "^krait: the prompt: '-3' is not a token id$" "$model" --ids -p "1 -3"
refuses large_id "^krait: the prompt: '99999999999' is not a token id$" "$model" --ids -p "1 99999999999"
refuses id_past_the_table '256' "$model" --ids -p "1 256"
refuses no_state 'no/such' "$model" --load-state no/such
run generate "$model" -p A -n 2 --samples 2 --save-state "$work/state"
refuses other_rows 'rows' "$model" --load-state "$work/state"
run generate "$official/mamba1" -p A -n 2 --save-state "$work/state"
refuses other_model "$work/state" "$model" --load-state "$work/state"
head -c 100 "$work/state" >"$work/short"
refuses short_state "$work/short" "$official/mamba1" --load-state "$work/short"
run generate "$model" -p A -n 2 --save-state no/such/state
equal unwritable_state "$rc $(grep -c 'no/such/state' "$err")" "1 1"

run generate --help
equal "help: status" $rc 0
for option in -p -f -n --temperature --top-k --top-p --min-p --repetition-penalty --presence-penalty --frequency-penalty --logit-bias \
    --stop --stop-id --ignore-eos --seed --samples --logprobs --greedy --save-state --load-state --prefill-chunk --dtype --threads \
    --isa --stats --echo --no-bos --plain --ids --low-memory --tokenizer --prompts --rows; do
    if grep -qE "^  (-., )?$option( |,|$)" "$out"; then pass; else fail "help: $option"; fi
done

# ---- many prompts ----

lines=$work/prompts.jsonl
{
    echo "{\"prompt\": [${prompt// /, }], \"id\": \"a \\\"b\\\"\", \"max_tokens\": 20, \"temperature\": 0}"
    echo "[${prompt// /, }]"
    echo
    echo "{\"prompt\": [17, 4], \"id\": 7, \"max_tokens\": 3, \"temperature\": 0.8, \"top_k\": 9, \"seed\": 5}"
    for ((i = 0; i < 9; i++)); do echo "{\"prompt\": [$((i + 1)), 200, 31], \"max_tokens\": $((i + 1))}"; done
} >"$lines"
quiet prompts generate "$model" --ids --prompts "$lines" -n 5
cp "$out" "$work/answers"
equal prompts/count "$(wc -l <"$work/answers")" 12
equal prompts/greedy "$(sed -n 1p "$work/answers")" \
    "{\"index\": 0, \"id\": \"a \\\"b\\\"\", \"ids\": [${greedy// /, }], \"finish\": \"length\", \"prompt_tokens\": 8, \"tokens\": 20}"
ids_quiet prompts/alone -n 5
equal prompts/list "$(sed -n 2p "$work/answers")" \
    "{\"index\": 1, \"ids\": [${got// /, }], \"finish\": \"length\", \"prompt_tokens\": 8, \"tokens\": 5}"
for options in "--rows 1" "--rows 3" "--threads 1"; do # a prompt's answer does not depend on its neighbours
    quiet "prompts/$options" generate "$model" --ids --prompts "$lines" -n 5 $options
    same "prompts/$options" "$out" "$work/answers"
done
timeout 60 "$krait" generate "$model" --ids --prompts - -n 5 <"$lines" >"$out" 2>"$err"
same prompts/stdin "$out" "$work/answers"
first=${greedy%% *} second=${greedy#* } # members that add to the options: the first greedy token ends it, or is excluded
second=${second%% *}
{
    echo "{\"prompt\": [${prompt// /, }], \"stop_ids\": $first, \"logprobs\": true}"
    echo "{\"prompt\": [${prompt// /, }], \"stop_ids\": [255, $second], \"logprobs\": false}"
    echo "{\"prompt\": [${prompt// /, }], \"logit_bias\": {\"$first\": null}, \"max_tokens\": 1}"
    echo "{\"prompt\": [${prompt// /, }], \"logit_bias\": {\"9\": 1e9}, \"max_tokens\": 2}"
} >"$lines"
quiet prompts/bias generate "$model" --ids -p "$prompt" -n 1 --ignore-eos --logit-bias "$first=-inf"
cp "$out" "$work/without"
quiet prompts/members generate "$model" --ids --prompts "$lines" --ignore-eos -n 9
if grep -qE "^\{\"index\": 0, \"ids\": \[$first\], \"logprobs\": \[-[0-9.]+\], \"finish\": \"stop\"" "$out"; then pass; else
    fail prompts/stop_ids "$(sed -n 1p "$out")"
fi
equal prompts/stop_ids "$(sed -n 2p "$out")" \
    "{\"index\": 1, \"ids\": [$first, $second], \"finish\": \"stop\", \"prompt_tokens\": 8, \"tokens\": 2}"
equal prompts/logit_bias "$(sed -n 3p "$out")" \
    "{\"index\": 2, \"ids\": [$(cat "$work/without")], \"finish\": \"length\", \"prompt_tokens\": 8, \"tokens\": 1}"
equal prompts/logit_bias "$(sed -n 4p "$out")" \
    "{\"index\": 3, \"ids\": [9, 9], \"finish\": \"length\", \"prompt_tokens\": 8, \"tokens\": 2}"
printf '%s\n' '{"prompt": [1, 256]}' '{"prompt": "A", "x": 1}' '{"prompt": "A", "top_p": 2}' '{' '{"id": 1}' '{"prompt": "A", "max_tokens": "2"}' \
    '{"prompt": "A", "stop": [""]}' '{"prompt": "A", "max_tokens": 1}' '{"prompt": "A", "stop_ids": [1, 256]}' \
    '{"prompt": "A", "logit_bias": {"x": 1}}' '{"prompt": "A", "logit_bias": {"256": 1}}' '{"prompt": "A", "logit_bias": {"5": true}}' \
    '{"prompt": "A", "logit_bias": []}' '{"prompt": "A", "logprobs": 2}' >"$lines"
run generate "$model" --prompts "$lines" --ignore-eos
equal prompts/status $rc 1
for text in 'prompt\[1\] must be a token from 0 to 255' 'unknown member \\"x\\"' 'top_p = 2, but must be above 0 and at most 1' 'json: at byte' \
    'the line has no \\"prompt\\"' 'max_tokens must be a whole number' 'stop must be a text that is not empty' '"finish": "length"' \
    'stop_ids must be a token from 0 to 255, or a list of such' 'logit_bias has the member \\"x\\", but must have tokens from 0 to 255' \
    'logit_bias has the member \\"256\\"' 'logit_bias of token 5 must be a number, or null' 'logit_bias must be an object' \
    'logprobs must be true or false'; do
    if grep -q -- "$text" "$out"; then pass; else fail "prompts/errors" "no line has: $text"; fi
done
usage prompts_and_prompt '^krait: generate: --prompts cannot be combined with -p' "$model" --prompts "$lines" -p A
refuses no_prompts '^krait: cannot open no/such: no such file or directory$' "$model" --prompts no/such
