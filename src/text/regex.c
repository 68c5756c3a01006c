/* regex.c - PCRE2: compiled once, with its JIT if available, for texts whose UTF-8 has been checked. */
#include "text/regex.h"

#include "base/shared.h"
#include "io/quote.h"

#if defined(KR_HAVE_PCRE2)

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

/* One attempt costs FIRST_LIMIT steps at most, so that all attempts are linear in the text; harder ones are charged to
 * a budget. */
enum { FIRST_LIMIT = 4096, GROWTH = 8, BUDGET = 100000000, BUDGET_PER_BYTE = 128 };
enum { MAX_PATTERN = 1 << 16, HEAP_KIB = 1 << 16, JIT_STACK_LEAST = 1 << 15, JIT_STACK_MOST = 1 << 23 };
enum { MATCH_OPTIONS = PCRE2_NO_UTF_CHECK };

/* Where PCRE2's memory comes from. */
typedef struct source {
    kr_memory *memory;
    bool was_refused; /* out of memory */
} source;

/* The compiled pattern, which matching does not change: regexes of several contexts may use it. */
typedef struct compiled {
    kr_shared shared;
    source source;
    kr_quote pattern; /* for messages */
    bool has_jit;
    pcre2_general_context *general;
    pcre2_code *code;
} compiled;

struct kr_regex {
    kr_ctx *ctx;
    compiled *compiled;
    bool is_first; /* of the context that compiled it */
    source source;
    int64_t budget;
    pcre2_general_context *general;
    const pcre2_code *code; /* compiled->code */
    bool has_jit;           /* compiled->has_jit */
    pcre2_match_data *match;
    pcre2_match_context *limits;
    pcre2_jit_stack *stack;
};

/* ---- PCRE2's memory ---- */

enum { HEADER = 64 }; /* holds the size, and keeps the alignment */

static void *allocate(size_t bytes, void *user)
{
    source *from = user;
    char *p = bytes <= SIZE_MAX - HEADER ? kr_memory_alloc(from->memory, bytes + HEADER) : NULL;
    if (!p) {
        from->was_refused = true;
        return NULL;
    }
    memcpy(p, &bytes, sizeof bytes);
    return p + HEADER;
}

static void release(void *p, void *user)
{
    const source *from = user;
    size_t bytes;
    if (!p) return;
    memcpy(&bytes, (char *)p - HEADER, sizeof bytes);
    kr_memory_free(from->memory, (char *)p - HEADER, bytes + HEADER);
}

/* ---- construction ---- */

static bool fail_for_memory(kr_ctx *ctx, const char *path)
{
    return kr_fail(ctx, KR_ERR_NOMEM, "tokenizer: %s: no memory for a regular expression", path);
}

static bool fail_to_compile(kr_ctx *ctx, const compiled *c, const char *path, int error, size_t at,
                            const char *translated)
{
    char reason[160] = "";
    if (c->source.was_refused || error == PCRE2_ERROR_HEAP_FAILED) return fail_for_memory(ctx, path);
    pcre2_get_error_message(error, (PCRE2_UCHAR *)reason, sizeof reason);
    return kr_fail(ctx, KR_ERR_FORMAT,
                   "tokenizer: %s: PCRE2 refuses the regular expression \"%s\": %s, before \"%.20s\"", path,
                   c->pattern.text, reason, kr_quote_of(translated + at, strlen(translated + at)).text);
}

static bool compile(kr_ctx *ctx, compiled *c, kr_buffer *translated, const char *path)
{
    const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
    int error = 0;
    size_t at = 0;
    c->source.memory = &c->shared.memory;
    c->general = pcre2_general_context_create(allocate, release, &c->source);
    if (!c->general) return fail_for_memory(ctx, path);
    pcre2_compile_context *context = pcre2_compile_context_create(c->general);
    if (context) {
        pcre2_set_newline(context, PCRE2_NEWLINE_LF);
        pcre2_set_bsr(context, PCRE2_BSR_UNICODE);
        c->code = pcre2_compile((PCRE2_SPTR)translated->data, translated->bytes, options, &error, &at, context);
        pcre2_compile_context_free(context);
    }
    if (!c->code) {
        return kr_buffer_put(translated, "", 1) && /* terminates it for the message */
               fail_to_compile(ctx, c, path, error, at < translated->bytes ? at : translated->bytes - 1,
                               translated->data);
    }
    /* Without executable memory there is no JIT, and the interpreter is used. */
    c->has_jit = pcre2_jit_compile(c->code, PCRE2_JIT_COMPLETE) == 0;
    return !c->source.was_refused || fail_for_memory(ctx, path);
}

static void release_compiled(compiled *c, bool is_first)
{
    if (!c || !kr_shared_leave(&c->shared, is_first)) return;
    pcre2_code_free(c->code);
    pcre2_general_context_free(c->general);
    kr_shared_free(&c->shared, sizeof *c);
}

/* ---- what each context has of its own ---- */

static bool prepare_matching(kr_regex *regex)
{
    regex->source.memory = &regex->ctx->memory;
    regex->code = regex->compiled->code;
    regex->has_jit = regex->compiled->has_jit;
    regex->general = pcre2_general_context_create(allocate, release, &regex->source);
    if (!regex->general) return false;
    regex->match = pcre2_match_data_create(1, regex->general);
    regex->limits = pcre2_match_context_create(regex->general);
    if (regex->has_jit) regex->stack = pcre2_jit_stack_create(JIT_STACK_LEAST, JIT_STACK_MOST, regex->general);
    if (!regex->match || !regex->limits || regex->source.was_refused) return false;
    pcre2_set_match_limit(regex->limits, FIRST_LIMIT);
    pcre2_set_heap_limit(regex->limits, HEAP_KIB);
    if (regex->stack) pcre2_jit_stack_assign(regex->limits, NULL, regex->stack);
    return true;
}

static kr_regex *create(kr_ctx *ctx, compiled *c, bool is_first, const char *path)
{
    kr_regex *regex = kr_memory_alloc_zeroed(&ctx->memory, sizeof *regex);
    if (!regex) {
        release_compiled(c, is_first);
        fail_for_memory(ctx, path);
        return NULL;
    }
    regex->ctx = ctx;
    regex->compiled = c;
    regex->is_first = is_first;
    if (prepare_matching(regex)) return regex;
    fail_for_memory(ctx, path);
    kr_regex_destroy(regex);
    return NULL;
}

kr_regex *kr_regex_create(kr_ctx *ctx, const char *pattern, size_t bytes, const char *path)
{
    if (!kr_require(ctx, bytes <= MAX_PATTERN, KR_ERR_FORMAT,
                    "tokenizer: %s: a regular expression of %zu bytes, but at most %d are supported", path, bytes,
                    MAX_PATTERN))
        return NULL;
    compiled *c = kr_shared_create(&ctx->memory, sizeof *c);
    if (!c) {
        fail_for_memory(ctx, path);
        return NULL;
    }
    c->pattern = kr_quote_of(pattern, bytes);
    kr_buffer translated = { .ctx = ctx };
    const bool is_compiled = kr_regex_translate(&translated, pattern, bytes, path) &&
                             kr_buffer_reserve(&translated, 1) && compile(ctx, c, &translated, path);
    kr_buffer_free(&translated);
    if (is_compiled) return create(ctx, c, true, path);
    release_compiled(c, true);
    return NULL;
}

kr_regex *kr_regex_share(kr_ctx *ctx, const kr_regex *from)
{
    kr_shared_add(&from->compiled->shared);
    return create(ctx, from->compiled, false, "share");
}

void kr_regex_destroy(kr_regex *regex)
{
    if (!regex) return;
    kr_memory *memory = &regex->ctx->memory;
    pcre2_jit_stack_free(regex->stack);
    pcre2_match_context_free(regex->limits);
    pcre2_match_data_free(regex->match);
    pcre2_general_context_free(regex->general);
    release_compiled(regex->compiled, regex->is_first);
    kr_memory_free(memory, regex, sizeof *regex);
}

int kr_regex_has_property(kr_ctx *ctx, const char *property, size_t bytes)
{
    source owner = { .memory = &ctx->memory };
    int error = 0;
    size_t at;
    pcre2_code *code = NULL;
    pcre2_general_context *general = pcre2_general_context_create(allocate, release, &owner);
    pcre2_compile_context *context = general ? pcre2_compile_context_create(general) : NULL;
    if (context) code = pcre2_compile((PCRE2_SPTR)property, bytes, PCRE2_UTF, &error, &at, context);
    const int has = code != NULL;
    pcre2_code_free(code);
    pcre2_compile_context_free(context);
    pcre2_general_context_free(general);
    if (!owner.was_refused) return has;
    kr_fail(ctx, KR_ERR_NOMEM, "tokenizer: no memory for a regular expression");
    return -1;
}

/* ---- matching ---- */

void kr_regex_begin(kr_regex *regex, size_t bytes)
{
    const size_t most = (size_t)(INT64_MAX / 2 / BUDGET_PER_BYTE);
    regex->budget = BUDGET + (int64_t)(bytes < most ? bytes : most) * BUDGET_PER_BYTE;
}

static int found(kr_regex *regex, size_t from, kr_match *match)
{
    const size_t *path = pcre2_get_ovector_pointer(regex->match);
    *match = (kr_match){ path[0], path[1] };
    if (path[0] >= from && path[1] >= path[0]) return 1;
    kr_fail(regex->ctx, KR_ERR_FORMAT,
            "tokenizer.encode: the regular expression \"%s\" gives a match that ends before it begins",
            regex->compiled->pattern.text);
    return -1;
}

static int fail_to_match(kr_regex *regex, int error, size_t at)
{
    char reason[160] = "";
    pcre2_get_error_message(error, (PCRE2_UCHAR *)reason, sizeof reason);
    if (regex->source.was_refused)
        kr_fail(regex->ctx, KR_ERR_NOMEM, "tokenizer.encode: no memory to match the regular expression \"%s\"",
                regex->compiled->pattern.text);
    else
        kr_fail(
            regex->ctx, KR_ERR_FORMAT,
            "tokenizer.encode: the regular expression \"%s\" takes too much time or memory at byte %zu of a text: %s",
            regex->compiled->pattern.text, at, reason);
    regex->source.was_refused = false;
    return -1;
}

static bool is_limit(int rc)
{
    return rc == PCRE2_ERROR_MATCHLIMIT || rc == PCRE2_ERROR_DEPTHLIMIT || rc == PCRE2_ERROR_JIT_STACKLIMIT;
}

/* At exactly one position, with as many steps as the budget allows. */
static int match_here(kr_regex *regex, const char *text, size_t bytes, size_t at)
{
    int rc;
    int64_t limit = FIRST_LIMIT;
    do {
        pcre2_set_match_limit(regex->limits, (uint32_t)limit);
        rc = pcre2_match(regex->code, (PCRE2_SPTR)text, bytes, at, MATCH_OPTIONS | PCRE2_ANCHORED | PCRE2_NO_JIT,
                         regex->match, regex->limits);
        limit *= GROWTH;
        if (is_limit(rc)) regex->budget -= limit;
    } while (is_limit(rc) && regex->budget >= 0 && limit <= UINT32_MAX);
    pcre2_set_match_limit(regex->limits, FIRST_LIMIT);
    return rc;
}

static int find_slowly(kr_regex *regex, const char *text, size_t bytes, size_t from, kr_match *match)
{
    for (size_t at = from; at <= bytes; at++) {
        if (at < bytes && ((unsigned char)text[at] & 0xc0) == 0x80) continue; /* inside a character */
        const int rc = match_here(regex, text, bytes, at);
        if (rc >= 0) return found(regex, from, match);
        if (rc != PCRE2_ERROR_NOMATCH) return fail_to_match(regex, rc, at);
    }
    return 0;
}

int kr_regex_find(kr_regex *regex, const char *text, size_t bytes, size_t from, kr_match *match)
{
    const int rc =
        regex->has_jit
            ? pcre2_jit_match(regex->code, (PCRE2_SPTR)text, bytes, from, MATCH_OPTIONS, regex->match, regex->limits)
            : pcre2_match(regex->code, (PCRE2_SPTR)text, bytes, from, MATCH_OPTIONS, regex->match, regex->limits);
    if (rc >= 0) return found(regex, from, match);
    if (rc == PCRE2_ERROR_NOMATCH) return 0;
    return is_limit(rc) ? find_slowly(regex, text, bytes, from, match) : fail_to_match(regex, rc, from);
}

#else

kr_regex *kr_regex_create(kr_ctx *ctx, const char *pattern, size_t bytes, const char *path)
{
    kr_fail(ctx, KR_ERR_UNSUPPORTED,
            "tokenizer: %s: the regular expression \"%s\" needs PCRE2, which this build lacks; install it (Debian: "
            "libpcre2-dev) and rebuild",
            path, kr_quote_of(pattern, bytes).text);
    return NULL;
}

kr_regex *kr_regex_share(kr_ctx *ctx, const kr_regex *from)
{
    (void)ctx, (void)from;
    return NULL;
}

void kr_regex_destroy(kr_regex *regex)
{
    (void)regex;
}

void kr_regex_begin(kr_regex *regex, size_t bytes)
{
    (void)regex, (void)bytes;
}

int kr_regex_find(kr_regex *regex, const char *text, size_t bytes, size_t from, kr_match *match)
{
    (void)regex, (void)text, (void)bytes, (void)from, (void)match;
    return 0;
}

int kr_regex_has_property(kr_ctx *ctx, const char *property, size_t bytes)
{
    (void)ctx, (void)property, (void)bytes;
    return 0;
}

#endif
