# entries.awk - entries of the public functions (base/entry.h), generated from the headers.
#
#   awk -v out=FOLDER -f entries.awk include/krait/*.h
#
# writes FOLDER/entry_names.h, which gives the definitions in the modules other names (kr_add_impl), and FOLDER/entry_HEADER.c
# for each header with functions:
#
#   kr_tensor *kr_add(kr_tape *tape, kr_tensor *a, kr_tensor *b)
#   {
#       kr_entry entry;
#       if (!kr_entry_begin(&entry, kr_ctx_of(tape ? (const void *)tape : ...), tape ? &tape->failed : NULL, ...))
#           return (kr_tensor *){ 0 };
#       kr_tensor *const entry_result = kr_add_impl(tape, a, b);
#       kr_entry_end(&entry);
#       return entry_result;
#   }
#
# The modules are compiled with these names and export nothing; the entries are what the library exports.
#
# A handle is a pointer to an opaque struct; its first member is the kr_ctx that it belongs to. The entry of a function only
# passes the call on if it has no handles, or if it only reads: all its handles are const, and it returns a value that is
# neither a kr_status nor a handle.

BEGIN {
    # They read elements, or take memory, though all their handles are const.
    split("kr_tensor_at kr_tokenizer_encode kr_tokenizer_decode kr_tokenizer_split kr_state_cache", list, " ")
    for (i in list) computes[list[i]] = 1
    # They return a handle that exists already.
    split("kr_grad kr_tape_ctx kr_trainer_optimizer kr_bidi_params", list, " ")
    for (i in list) reads[list[i]] = 1
    # Written by hand in api/error_entries.c.
    split("kr_ctx_status kr_ctx_message kr_ctx_fail kr_ctx_destroy", list, " ")
    for (i in list) by_hand[list[i]] = 1
    no_handle["kr_json"] = 1 # a value inside a document, which never changes
}

function trim(s) {
    gsub(/[ \t\n]+/, " ", s)
    sub(/^ /, "", s)
    sub(/ $/, "", s)
    return s
}

function without_comments(s,    from, rest) {
    while ((from = index(s, "/*")) > 0) {
        rest = substr(s, from + 2)
        s = substr(s, 1, from - 1) " " substr(rest, index(rest, "*/") + 2)
    }
    return s
}

FNR == 1 {
    header = FILENAME
    sub(/.*\//, "", header)
    sub(/\.h$/, "", header)
    headers[++nheaders] = header
}
/^[ \t]*#/ || continued { # a directive and the lines that continue it
    continued = /\\$/
    next
}
{ text[header] = text[header] $0 "\n" }

function find_handles(s) {
    while (match(s, /typedef struct kr_[a-z0-9_]+ kr_[a-z0-9_]+;/)) {
        split(substr(s, RSTART, RLENGTH), words, /[ ;]/)
        if (words[3] == words[4]) handle[words[4]] = 1
        s = substr(s, RSTART + RLENGTH)
    }
}
function drop_defined(s) { # a struct whose members are public is no handle
    while (match(s, /struct kr_[a-z0-9_]+ \{/)) {
        split(substr(s, RSTART, RLENGTH), words, " ")
        delete handle[words[2]]
        s = substr(s, RSTART + RLENGTH)
    }
}

# The entry of "TYPE NAME(PARAMETERS)", or "".
function entry_of(proto,    open, head, name, type, n, params, i, p, id, base, is_const, names, ctx, tape, computed, kind, fail, body) {
    open = index(proto, "(")
    head = substr(proto, 1, open - 1)
    name = head
    sub(/.*[ *]/, "", name)
    type = trim(substr(head, 1, length(head) - length(name)))
    sub(/^KR_MUST_CHECK /, "", type)
    sub(/^KR_DEPRECATED\([^)]*\) /, "", type)
    print "#define " name " " name "_impl" > (out "/entry_names.h")
    if (by_hand[name]) return ""
    proto = substr(proto, open + 1)
    sub(/\)[^)]*$/, "", proto)
    n = split(proto, params, ",")
    names = ctx = tape = ""
    computed = type == "void" || type == "kr_status" || name ~ /_(create|open|load|read)$/ || computes[name]
    if (type ~ /^kr_[a-z0-9_]+ \*$/ && handle[substr(type, 1, length(type) - 2)] && !reads[name]) computed = 1
    for (i = 1; i <= n; i++) {
        p = trim(params[i])
        id = p
        sub(/.*[ *]/, "", id)
        names = names (i > 1 ? ", " : "") id
        is_const = p ~ /^const /
        base = p
        sub(/^const /, "", base)
        if (base !~ /^kr_[a-z0-9_]+ \*[a-z0-9_]+$/) continue
        sub(/ .*/, "", base)
        if (!handle[base] || no_handle[base]) continue
        if (!is_const) computed = 1
        if (base == "kr_tape" && tape == "") tape = id
        if (base == "kr_ctx") { ctx = (ctx == "" ? "(kr_ctx *)" id : ctx); continue }
        if (ctx == "") ctx = "kr_ctx_of(" id ")"
        else if (ctx ~ /^kr_ctx_of\(/) {
            sub(/\)$/, "", ctx)
            sub(/^kr_ctx_of\(/, "", ctx)
            if (ctx !~ /\?/) ctx = ctx " ? (const void *)" ctx
            ctx = "kr_ctx_of(" ctx " : " id " ? (const void *)" id ")"
        }
    }
    if (ctx ~ /\?/) sub(/\)$/, " : NULL)", ctx)
    kind = name ~ /_(destroy|close)$/ ? "KR_ENTRY_DESTROYS" : "KR_ENTRY_COMPUTES"
    tape = tape != "" && kind == "KR_ENTRY_COMPUTES" ? tape " ? &" tape "->failed : NULL" : "NULL"
    fail = type == "void" ? "" : type == "kr_status" ? " KR_ERR_STATE" : type == "double" ? " NAN" : " (" type "){ 0 }"
    if (names == "void") names = ""
    params_text = trim(proto)
    body = type (type ~ /\*$/ ? "" : " ") name "_impl(" params_text ");\n"
    body = body type (type ~ /\*$/ ? "" : " ") name "(" params_text ")\n{\n"
    if (ctx == "" || !computed) return body (type == "void" ? "    " : "    return ") name "_impl(" names ");\n}\n"
    body = body "    kr_entry entry;\n"
    body = body "    if (!kr_entry_begin(&entry, " ctx ", " tape ", " kind ")) return" fail ";\n    "
    if (type != "void") body = body type (type ~ /\*$/ ? "" : " ") "const entry_result = "
    body = body name "_impl(" names ");\n    kr_entry_end(&entry);\n" (type == "void" ? "" : "    return entry_result;\n") "}\n"
    return body
}

END {
    print "/* Generated by src/api/entries.awk: names of the definitions in the modules. */" > (out "/entry_names.h")
    for (h = 1; h <= nheaders; h++) {
        text[headers[h]] = without_comments(text[headers[h]])
        find_handles(text[headers[h]])
    }
    for (h = 1; h <= nheaders; h++) drop_defined(text[headers[h]])
    for (h = 1; h <= nheaders; h++) {
        n = split(text[headers[h]], protos, "KR_API ")
        code = ""
        for (i = 2; i <= n; i++) {
            sub(/;.*/, "", protos[i])
            entry = entry_of(trim(protos[i]))
            if (entry != "") code = code "\n" entry
        }
        if (code == "") continue
        file = out "/entry_" headers[h] ".c"
        print "/* Generated by src/api/entries.awk from <krait/" headers[h] ".h>. */" > file
        print "#include \"base/entry.h\"\n#include \"tape/tape_impl.h\"\n" > file
        print "#include <krait/" headers[h] ".h>\n\n#include <math.h>" > file
        printf "%s", code > file
        close(file)
    }
    close(out "/entry_names.h")
}
