# test_null_calls.awk - calls of all public functions with NULL arguments, generated from the headers.
#
#   awk -f test_null_calls.awk null_values.h include/krait/*.h >test_null_calls.h
#
# For each function
#
#   static void call_kr_add(unsigned null)      bit i of null: the i-th pointer argument is NULL, others are valid
#
# and a row in null_calls[]. Valid arguments come from null_values.h: v_kr_tape() for a kr_tape *, and so on; option structs
# have their defaults and other public structs zeros. A parameter that nothing there fits is an #error: add a value.

FNR == 1 { is_values = FILENAME ~ /null_values/ }
is_values {
    if (match($0, /v_[a-z0-9_]+\(/)) has[substr($0, RSTART, RLENGTH - 1)] = 1
    next
}
/^#define kr_[a-z0-9_]+_init\(/ {
    name = $2
    sub(/_init\(.*/, "", name)
    sized[name] = 1
}
/^[ \t]*#/ || continued {
    continued = /\\$/
    next
}
{ text = text $0 "\n" }

function trim(s) {
    gsub(/[ \t\n]+/, " ", s)
    sub(/^ /, "", s)
    sub(/ $/, "", s)
    return s
}

# The initialiser of a pointer argument; sets `before` to what must be said first.
function pointer_value(type, id, fn,    base, value) {
    base = type
    gsub(/const |[ *]|const/, "", base)
    if (type ~ /\*.*\*.*\*/) value = "v_keep()"
    else if (type ~ /\*.*\*/) value = base ~ /^kr_/ ? "v_" base "_list()" : "v_memory()"
    else if (base == "void" && id == "stream") value = "v_stream()"
    else if (base ~ /^(void|bool|int|size_t|int32_t|int64_t|double)$/) value = "v_memory()"
    else if (base == "char") value = type ~ /^const/ ? "v_text(\"" id "\")" : "v_memory()"
    else if (base == "kr_tensor") value = "v_kr_tensor(\"" id "\")"
    else if (base ~ /_fn$/) value = "v_" base
    else if (has["v_" base]) value = "v_" base "()"
    else if (sized[base]) {
        before = before "    " base " own_" id ";\n    " base "_init(&own_" id ");\n"
        return "&own_" id
    } else if (is_public[base]) return "&(" base "){ 0 }"
    else value = "v_" base "()"
    name = value
    sub(/\(.*/, "", name)
    if (!has[name]) print "#error \"null_values.h: " name " is missing, for " type " " id " of " fn "\""
    return value
}

function scalar_value(type, id, fn) {
    if (id == "count" && fn ~ /_(read|write)$/) return 4 # all elements
    if (type == "double") return "0.5"
    if (type == "bool") return "false"
    if (type ~ /^(int|int32_t|int64_t|size_t|uint64_t|unsigned)$/) return id == "axis" ? "0" : "1"
    if (type == "kr_shape") return "KR_SHAPE(2, 2)"
    if (type == "kr_axes") return "KR_AXES(0, 1)"
    if (type == "kr_ssd_path") return "kr_ssd_path_default()"
    return "(" type "){ 0 }"
}

function emit(proto,    open, head, name, type, n, params, i, p, id, args, ptype, code, npointers, check) {
    open = index(proto, "(")
    head = substr(proto, 1, open - 1)
    name = head
    sub(/.*[ *]/, "", name)
    type = trim(substr(head, 1, length(head) - length(name)))
    sub(/^KR_MUST_CHECK /, "", type)
    sub(/^KR_DEPRECATED\([^)]*\) /, "", type)
    proto = substr(proto, open + 1)
    sub(/\)[ ]*KR_PRINTF.*$/, "", proto)
    sub(/\)[^)]*$/, "", proto)
    n = split(proto, params, ",")
    args = code = before = ""
    npointers = 0
    for (i = 1; i <= n; i++) {
        p = trim(params[i])
        if (p == "...") args = args ", 0"
        if (p == "void" || p == "...") continue
        id = p
        sub(/.*[ *]/, "", id)
        ptype = trim(substr(p, 1, length(p) - length(id)))
        args = args (args == "" ? "" : ", ") "a_" id
        if (ptype ~ /\*/) {
            value = pointer_value(ptype, id, name)
            code = code "    " ptype " a_" id " = null & " 2 ^ npointers++ "u ? NULL : " value ";\n"
        } else code = code "    " ptype " a_" id " = " scalar_value(ptype, id, name) ";\n"
    }
    all = npointers ? "null == " 2 ^ npointers - 1 "u" : "false"
    print "static void call_" name "(unsigned null)\n{\n" before code (npointers ? "" : "    (void)null;\n")
    if (type == "void") print "    " name "(" args ");"
    else if (type == "kr_status") print "    check_status(\"" name "\", " all ", " name "(" args "));"
    else if (type == "kr_tensor *") print "    check_tensor(\"" name "\", " all ", " name "(" args "));"
    else if (type ~ /^kr_[a-z0-9_]+ \*$/ && destroys[type]) print "    " destroys[type] "(" name "(" args "));"
    else print "    (void)" name "(" args ");"
    print "}\n"
    rows = rows "    { \"" name "\", call_" name ", " npointers " },\n"
}

END {
    while ((from = index(text, "/*")) > 0) {
        rest = substr(text, from + 2)
        text = substr(text, 1, from - 1) " " substr(rest, index(rest, "*/") + 2)
    }
    s = text
    while (match(s, /struct kr_[a-z0-9_]+ \{/)) {
        split(substr(s, RSTART, RLENGTH), words, " ")
        is_public[words[2]] = 1
        s = substr(s, RSTART + RLENGTH)
    }
    n = split(text, protos, "KR_API ")
    for (i = 2; i <= n; i++) {
        sub(/;.*/, "", protos[i])
        protos[i] = trim(protos[i])
        if (match(protos[i], /^void kr_[a-z0-9_]+_(destroy|close)\(kr_[a-z0-9_]+ \*/)) {
            split(protos[i], words, /[ (]/)
            destroys[words[3] " *"] = words[2]
        }
    }
    delete destroys["kr_tensor *"]
    print "/* Generated by tests/embedding/test_null_calls.awk. */\n"
    for (i = 2; i <= n; i++) emit(protos[i])
    print "static const struct {\n    const char *name;\n    void (*call)(unsigned null);\n    int npointers;\n} null_calls[] = {\n" rows "};"
}
