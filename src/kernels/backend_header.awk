# backend_header.awk - <krait/backend/kernels.h>: the argument structs and the table of kernels as one header for backends, out
# of the internal headers, which are the one place where they are written.
#
#   awk -v root=src -f backend_header.awk >include/krait/backend/kernels.h
#
# kernels/kernels.h is copied with the headers and lists that it includes in their places. They keep their include guards,
# so that a source of the library may include both. KR_KERNEL_CONTRACT is a hash of that text without comments and spaces:
# any change of a struct or of the list gives another number, and a backend that was built with another one is refused.

function hash_of(line,    i) {
    gsub(/\/\*[^*]*\*+([^\/*][^*]*\*+)*\//, "", line) # comments of one line; others are cut by the caller
    gsub(/[ \t\\]/, "", line)
    for (i = 1; i <= length(line); i++) hash = (hash * 31 + code[substr(line, i, 1)]) % 4294967291
}

function take(file,    line, path, rest, inside) {
    while ((getline line <file) > 0) {
        if (match(line, /^[ \t]*#[ \t]*include[ \t]*"/)) {
            path = substr(line, RLENGTH + 1)
            sub(/".*/, "", path)
            if (path == "base/pool.h") text = text "typedef struct kr_pool kr_pool; /* see kr_backend_host.parallel */\n"
            else if (path ~ /\.def$/) take(root "/" path)
            else if (!(path in taken)) {
                taken[path] = 1
                take(root "/" path)
            }
            continue
        }
        text = text line "\n"
        rest = line
        if (inside) {
            if (!match(rest, /\*\//)) continue
            rest = substr(rest, RSTART + 2)
            inside = 0
        }
        if (match(rest, /\/\*/) && substr(rest, RSTART) !~ /\*\//) {
            inside = 1
            rest = substr(rest, 1, RSTART - 1)
        }
        hash_of(rest)
    }
    close(file)
}

BEGIN {
    for (i = 1; i < 128; i++) code[sprintf("%c", i)] = i
    taken["kernels/kernels.h"] = 1
    take(root "/kernels/kernels.h")
    if (length(text) < 1000) exit 1
    print "/* backend/kernels.h - the kernels of Krait, their arguments and their contracts, for backends (<krait/backend.h>)."
    print " * Generated from src/kernels by src/kernels/backend_header.awk. It changes with every version: a backend works with"
    print " * the library for whose headers it was compiled, and is refused by others. */"
    print "#ifndef KRAIT_BACKEND_KERNELS_H\n#define KRAIT_BACKEND_KERNELS_H\n"
    print "#include <krait/backend.h>\n"
    printf "/* The number of this contract; a hash of the declarations below. */\n#define KR_KERNEL_CONTRACT %.0fu\n\n", hash
    print "/* The first fields of every kr_backend_info: { KR_BACKEND_HEAD, .name = \"mine\", ... } */"
    print "#define KR_BACKEND_HEAD \\"
    print "    .size = sizeof(kr_backend_info), .version = KR_BACKEND_VERSION, .contract = KR_KERNEL_CONTRACT, \\"
    print "    .kernels_bytes = sizeof(struct kr_kernels)\n"
    print "#ifdef __cplusplus\nextern \"C\" {\n#endif\n"
    printf "%s", text
    print "\n#ifdef __cplusplus\n}\n#endif\n#endif"
}
