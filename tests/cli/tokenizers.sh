# tokenizers.sh - which tokenizer generate and eval take, what it puts before a text, and its special tokens.
new_model() { # NAME VOCABULARY
    run new "$work/$1" --family mamba2 --d-model 16 --layers 1 --d-state 8 --head-dim 8 --vocab "$2"
    [ $rc = 0 ] || fail "new $1" "$(cat "$err")"
}

# The 256 bytes in the letters of byte-level vocabularies, and two special tokens; <|begin|> is put before each text.
write_tokenizer() { # FILE
    local byte others=0 letter vocab=
    for ((byte = 0; byte < 256; byte++)); do
        if ((byte >= 33 && byte <= 126 || byte >= 161 && byte <= 172 || byte >= 174)); then
            letter=$byte
        else
            letter=$((256 + others)) others=$((others + 1))
        fi
        vocab+=$(printf '"\\u%04x":%d,' $letter $byte)
    done
    local flags='"single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true'
    cat >"$1" <<JSON
{"version":"1.0","truncation":null,"padding":null,
 "added_tokens":[{"id":256,"content":"<|begin|>",$flags},{"id":257,"content":"<|endoftext|>",$flags}],
 "normalizer":null,
 "pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true},
 "post_processor":{"type":"TemplateProcessing",
  "single":[{"SpecialToken":{"id":"<|begin|>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],
  "pair":[{"Sequence":{"id":"A","type_id":0}},{"Sequence":{"id":"B","type_id":1}}],
  "special_tokens":{"<|begin|>":{"id":"<|begin|>","ids":[256],"tokens":["<|begin|>"]}}},
 "decoder":{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true},
 "model":{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,"end_of_word_suffix":null,
  "fuse_unk":false,"vocab":{${vocab%,}},"merges":[]}}
JSON
}
new_model bytes 258
new_model words 300
write_tokenizer "$work/tokenizer.json"
model=$work/words

# text NAME IDS OPTION... - with these options a prompt is these numbers: the same answer as to them.
text() {
    local name=$1 numbers=$2
    shift 2
    run generate "$model" --ids -p "$numbers" -n 12 --ignore-eos --tokenizer "$work/tokenizer.json"
    cut -d ' ' -f 1-12 "$out" >"$work/want"
    quiet "$name" generate "$model" "$@" -n 12 --ignore-eos --logprobs
    cut -f 2 "$out" | paste -sd ' ' >"$work/got"
    same "$name" "$work/got" "$work/want"
}
gives no_tokenizer 1 "^krait: $model has no tokenizer.json, and its vocabulary of 300 tokens is not that of bytes\$" generate "$model" -p A
gives no_tokenizer 1 "^       put tokenizer.json into the folder or name it: the one that the model was trained with \(see --tokenizer\)\$" \
    eval "$model" --text "$work/tokenizer.json"
text begin "256 72 105" -p Hi --tokenizer "$work/tokenizer.json"
cp "$work/tokenizer.json" "$model"
text "in the folder" "256 72 105" -p Hi
text "no bos" "72 105" -p Hi --no-bos
text "special" "256 257 72 256" -p "<|endoftext|>H<|begin|>"
text "plain" "256 60 124 98 101 103 105 110 124 62" -p "<|begin|>" --plain
text "nothing" "256" -p ""
text "nothing without bos" "257" -p "" --no-bos

# The tokenizer's end of text ends an answer of a model that names none, and is not shown.
quiet eos generate "$model" -p Hi -n 5 --logit-bias 257=1000
equal eos "$(wc -c <"$out")" 0
quiet eos generate "$model" -p Hi -n 5 --logit-bias 257=1000 --logprobs
equal eos "$(cut -f 2,4 "$out")" $'257\t"<|endoftext|>"'
quiet "no eos" generate "$model" -p Hi -n 3 --logit-bias 257=1000 --logprobs --ignore-eos
equal "no eos" "$(wc -l <"$out")" 3
run generate "$model" -p Hi -n 5 --logit-bias 257=1000 --stats
if grep -qE '^finish +stop id$' "$err" && grep -qE '^prompt +3 tokens' "$err"; then pass; else fail "eos stats" "$(cat "$err")"; fi

# The state continues in the middle of a text: nothing is put before it again.
run generate "$model" -p Hi -n 0 --save-state "$work/state"
text "after a state" "256 72 105 33" --load-state "$work/state" -p "!"

# Texts are cut and put together by the tokenizer's own rules.
quiet utf8 generate "$model" -p "H" -n 6 --temperature 1 --logit-bias 195=1000 --logit-bias 169=1000 --echo
equal utf8 "$(wc -c <"$out")" 7

gives too_many 1 "^krait: tokenizer .*/tokenizer.json has 258 tokens, but model tests/golden/official_lm/mamba2 has 256\$" \
    generate tests/golden/official_lm/mamba2 -p A --tokenizer "$work/tokenizer.json"
gives too_many 1 "^krait: tokenizer bytes has 256 tokens, but model .*/few has 100\$" generate "$(new_model few 100 && echo "$work/few")" -p A --tokenizer bytes
gives few 1 "^krait: $work/few has no tokenizer.json, and its vocabulary of 100 tokens is smaller than the 256 bytes\$" generate "$work/few" -p A
quiet "few by ids" generate "$work/few" --ids -p "1 2" -n 3
quiet "bytes and two more" generate "$work/bytes" -p A -n 3
echo '{"version": 1' >"$work/bad.json"
gives bad_tokenizer 1 "^krait: .*bad.json: tokenizer: json: at byte" generate "$model" -p A --tokenizer "$work/bad.json"
new_model neox 50277
gives neox 1 '^       put tokenizer.json into the folder or name it: that of GPT-NeoX-20b, by the size of the vocabulary' generate "$work/neox" -p A
new_model llama 128256
gives llama 1 '^       put tokenizer.json into the folder or name it: that of Llama-3.1, by the size' generate "$work/llama" -p A

# ---- eval: what stands before a text lets its first token be scored ----

figure() { sed -nE "s,^$1 +,,p" "$out"; }
printf H >"$work/text"
run generate "$model" --ids -p 256 -n 1 --logit-bias 72=1000 --logprobs
logprob=$(cut -f 3 "$out")
quiet "eval begin" eval "$model" --text "$work/text"
holds "eval begin" "$(figure nats/token) + $logprob < 2e-6 && $(figure nats/token) + $logprob > -2e-6"
equal "eval begin" "$(figure tokens) $(figure bytes)" "1 1"
gives "eval no bos" 1 'nothing to score' eval "$model" --text "$work/text" --no-bos
printf 'Hi<|endoftext|>Ho<|begin|>' >"$work/text"
quiet "eval special" eval "$model" --text "$work/text"
equal "eval special" "$(figure tokens) $(figure bytes)" "6 26"
quiet "eval plain" eval "$model" --text "$work/text" --plain
equal "eval plain" "$(figure tokens) $(figure bytes)" "26 26"
quiet "eval windows" eval "$model" --text "$work/text" --reset-every 2
equal "eval windows" "$(figure tokens) $(figure bytes)" "6 26"
want=$(figure nats/token)
quiet "eval windows in chunks" eval "$model" --text "$work/text" --reset-every 2 --chunk 1
holds "eval windows in chunks" "$(figure nats/token) - $want < 1e-6 && $want - $(figure nats/token) < 1e-6"
quiet "eval windows without bos" eval "$model" --text "$work/text" --reset-every 2 --no-bos
equal "eval windows without bos" "$(figure tokens)" 3

# Two tokens before a text: neither of them is scored.
sed -E 's/("single":\[)/\1{"SpecialToken":{"id":"<|endoftext|>","type_id":0}},/;
        s/("special_tokens":\{)/\1"<|endoftext|>":{"id":"<|endoftext|>","ids":[257],"tokens":["<|endoftext|>"]},/' \
    "$work/tokenizer.json" >"$model/tokenizer.json"
text "two tokens before a text" "257 256 72 105" -p Hi
printf Hi >"$work/text"
for chunk in 1 2 512; do
    quiet "eval two tokens" eval "$model" --text "$work/text" --chunk $chunk
    equal "eval two tokens" "$(figure tokens) $(figure bytes)" "2 2"
    [ $chunk = 1 ] || holds "eval two tokens" "$(figure nats/token) - $want < 1e-6 && $want - $(figure nats/token) < 1e-6"
    want=$(figure nats/token)
done
run generate "$model" --ids -p "257 256" -n 1 --logit-bias 72=1000 --logprobs
first=$(cut -f 3 "$out")
run generate "$model" --ids -p "257 256 72" -n 1 --logit-bias 105=1000 --logprobs
holds "eval two tokens: value" "$want * 2 + $first + $(cut -f 3 "$out") < 4e-6 && $want * 2 + $first + $(cut -f 3 "$out") > -4e-6"
