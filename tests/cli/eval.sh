# eval.sh - krait eval: the figures against recorded losses and against each other.
model=tests/golden/official_lm/mamba2
head -c 3000 tests/golden/README.md >"$work/text"
figure() { sed -nE "s,^$1 +,,p" "$out"; }
close() { holds "$1" "($2) - ($3) < $4 && ($3) - ($2) < $4"; } # NAME GOT WANT ERROR

# Hugging Face's own loss of a model is the mean over two rows; their ids are bytes.
for io in {tests,../shared}/golden/hf_*/*/io.safetensors; do
    [ -e "$io" ] || continue
    folder=${io%/*} sum=0
    mapfile -t all < <(tensor "$io" input_ids d8)
    row=$((${#all[@]} / 2))
    for at in 0 $row; do
        bytes "${all[@]:at:row}" >"$work/row"
        quiet "eval/$folder" eval "$folder" --text "$work/row" --no-bos
        sum="$sum + $(figure nats/token)"
    done
    # five digits after the point of a loss near 5.5, computed in f32 there
    close "eval/$folder" "($sum) / 2" "$(tensor "$io" loss f4 | tr -d ' ')" 3e-6
done

for model in tests/golden/official_lm/*; do
    quiet "eval/${model##*/}" eval "$model" --text "$work/text"
    want=$(figure nats/token)
    equal "eval: tokens" "$(figure tokens) $(figure bytes)" "2999 2999"
    holds "eval: an untrained model" "$want > 4 && $want < 12"
    # Chunks differ in the rounding of f32; over thousands of tokens that averages out.
    for chunk in 1 7 64 1000 5000; do
        [ $chunk != 1 ] || [ "${KR_TEST_QUICK-0}" = 0 ] || continue
        run eval "$model" --text "$work/text" --chunk $chunk
        close "eval: chunks of $chunk, ${model##*/}" "$(figure nats/token)" "$want" 1e-6
    done
done
model=tests/golden/official_lm/mamba2

quiet "eval: figures" eval "$model" --text "$work/text"
nats=$(figure nats/token)
close "eval: perplexity" "$(figure perplexity) / exp($nats)" 1 1e-7
close "eval: bits" "$(figure bits/byte)" "$nats / log(2)" 1e-7
"$krait" eval "$model" --text - <"$work/text" >"$out" 2>"$err"
equal "eval: stdin" "$(figure nats/token)" "$nats"
quiet "eval: bf16" eval "$model" --text "$work/text" --dtype bf16 --tokenizer bytes --plain --threads 1
close "eval: bf16" "$(figure nats/token)" "$nats" 0.05
quiet "eval: isa" eval "$model" --text "$work/text" --isa ref
close "eval: isa" "$(figure nats/token)" "$nats" 1e-5

# A part of the text is the text of that part; windows are texts of their own.
head -c 100 "$work/text" >"$work/part"
quiet "eval: max tokens" eval "$model" --text "$work/text" -n 100
cp "$out" "$work/got"
quiet "eval: max tokens" eval "$model" --text "$work/part"
same "eval: max tokens" "$out" "$work/got"
head -c 90 "$work/text" >"$work/part"
sum=0 count=0
for at in 0 40 80; do
    tail -c +$((at + 1)) "$work/part" | head -c 40 >"$work/window"
    run eval "$model" --text "$work/window"
    sum="$sum + $(figure nats/token) * $(figure tokens)"
    count=$((count + $(figure tokens)))
done
for chunk in 512 40 39 16 1; do
    quiet "eval: windows, chunk $chunk" eval "$model" --text "$work/part" --reset-every 40 --chunk $chunk
    equal "eval: windows, chunk $chunk" "$(figure tokens)" $count
    close "eval: windows, chunk $chunk" "$(figure nats/token)" "($sum) / $count" 1e-5
done

run eval "$model" --text "$work/text" --stats
for line in '^model +mamba2, .*, f32$' '^machine +[a-z0-9]+, threads 2$' '^load +[0-9.]+ s$' '^eval +[0-9.]+ s, [0-9.]+ tokens/s$' \
    '^memory +[0-9.]+ MiB at most$'; do
    if grep -qE "$line" "$err"; then pass; else fail "eval: stats: $line" "$(cat "$err")"; fi
done

# Memory goes with the chunk, not with the text.
memory() { sed -nE 's/^memory +([0-9.]+) .*/\1/p' "$err"; }
run eval "$model" --text "$work/text" --stats --chunk 100 -n 200
short=$(memory)
run eval "$model" --text "$work/text" --stats --chunk 100
holds "eval: constant memory" "$(memory) <= $short"

# An interrupt ends it with the figures of what was scored.
for seconds in 0.5 2 8; do # until something was, on a busy machine
    yes | timeout --preserve-status -s INT $seconds "$krait" eval "$model" --text - >"$out" 2>"$err"
    rc=${PIPESTATUS[1]}
    [ ! -s "$out" ] || break
done
equal "eval: interrupt" "$rc $(wc -l <"$out") $(cat "$err")" "130 5 "
holds "eval: interrupt" "$(figure tokens) > 0 && $(figure nats/token) > 0"

gives "eval: no text" 2 '^krait: eval: --text FILE is missing' eval "$model"
gives "eval: no model" 2 '^krait: eval: MODEL is missing' eval --text "$work/text"
gives "eval: no file" 1 '^krait: cannot open no/such: no such file or directory$' eval "$model" --text no/such
gives "eval: a folder" 1 '^krait: cannot read tests: is a directory$' eval "$model" --text tests
gives "eval: no folder" 1 '^krait: .*cannot open .*no/such/config.json: no such file or directory$' eval no/such --text "$work/text"
gives "eval: remedy" 1 '^       a model folder holds config.json' eval no/such --text "$work/text"
gives "eval: small window" 2 "^krait: eval: --reset-every is '1', but must be" eval "$model" --text "$work/text" --reset-every 1
printf A >"$work/part"
gives "eval: one token" 1 '^krait: eval: nothing to score: .* has 1 tokens$' eval "$model" --text "$work/part"
: >"$work/part"
gives "eval: nothing" 1 '^krait: eval: nothing to score: .* has 0 tokens$' eval "$model" --text "$work/part"
gives "eval: tokenizer" 1 'no/such' eval "$model" --text "$work/text" --tokenizer no/such
