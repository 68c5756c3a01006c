/* pickle.c - the pickle machine: a stack of values, marks on it, and a memo of values.
 *
 * Instructions are those that Python's pickler writes for dictionaries of tensors, with protocols 2 to 5. There is no
 * recursion, and the time of each step is bounded by its own bytes or the values that it pops, so a program takes time
 * and memory in proportion to its length.
 */
#include "io/pickle.h"

#include "io/pickle_value.h"
#include "io/quote.h"
#include "io/utf8.h"

#include <string.h>

enum { BLOCK_BYTES = 1 << 16, PROTOCOL_FIRST = 2, PROTOCOL_LAST = 5 };
static const size_t most_bytes = (size_t)64 << 20;
static const size_t most_values = (size_t)4 << 20; /* on the stack, in the memo, objects created */
static const size_t most_object_bytes = (size_t)256 << 20;

#define FAIL(m, ...) kr_fail((m)->ctx, KR_ERR_FORMAT, __VA_ARGS__)

void *kr_pickle_alloc(machine *m, size_t bytes)
{
    if ((size_t)m->nobjects == most_values || bytes > most_object_bytes - m->arena.used) {
        FAIL(m, "it creates more than %zu objects, or more than %zu bytes of them", most_values, most_object_bytes);
        return NULL;
    }
    m->nobjects++;
    void *p = kr_arena_alloc(&m->arena, bytes);
    if (!p) kr_fail(m->ctx, KR_ERR_NOMEM, "no memory for an object of %zu bytes", bytes);
    return p;
}

/* ---- stack, marks, memo ---- */

/* Capacity for `needed` elements of `size` bytes each, at least doubling; new ones are zero. */
static bool grow(machine *m, void **at, size_t *capacity, size_t needed, size_t size)
{
    if (needed <= *capacity) return true;
    if (needed > most_values) return FAIL(m, "it keeps more than %zu values", most_values);
    kr_memory *memory = &m->ctx->memory;
    size_t wanted = *capacity ? *capacity : 64;
    while (wanted < needed) wanted *= 2;
    char *larger = kr_memory_alloc_zeroed(memory, wanted * size);
    if (!larger) return kr_fail(m->ctx, KR_ERR_NOMEM, "no memory for %zu values", wanted);
    if (*capacity) memcpy(larger, *at, *capacity * size);
    kr_memory_free(memory, *at, *capacity * size);
    *at = larger;
    *capacity = wanted;
    return true;
}

static bool reserve(machine *m)
{
    void *at = m->stack.at;
    const bool grown = grow(m, &at, &m->stack.capacity, m->stack.count + 1, sizeof *m->stack.at);
    m->stack.at = at;
    return grown;
}

static bool push(machine *m, value v)
{
    if (!reserve(m)) return false;
    m->stack.at[m->stack.count++] = v;
    return true;
}

/* Pops n values, which stay valid until the next push; NULL if a mark or the bottom is above them. */
static const value *pop(machine *m, size_t n)
{
    const size_t floor = m->marks.count ? m->marks.at[m->marks.count - 1] : 0;
    if (m->stack.count - floor < n) {
        FAIL(m, "the stack has %zu values, but %zu are needed", m->stack.count - floor, n);
        return NULL;
    }
    m->stack.count -= n;
    return m->stack.at + m->stack.count;
}

/* All values down to the last mark, and the mark. */
static const value *pop_marked(machine *m, size_t *n)
{
    if (m->marks.count == 0) {
        FAIL(m, "there is no mark on the stack");
        return NULL;
    }
    const size_t floor = m->marks.at[--m->marks.count];
    *n = m->stack.count - floor;
    m->stack.count = floor;
    return m->stack.at + floor;
}

/* The value on top, modified in slot by an instruction. */
static value *top(machine *m)
{
    const size_t floor = m->marks.count ? m->marks.at[m->marks.count - 1] : 0;
    if (m->stack.count > floor) return &m->stack.at[m->stack.count - 1];
    FAIL(m, "the stack is empty");
    return NULL;
}

static bool set_memo(machine *m, size_t slot)
{
    const value *v = top(m);
    if (!v) return false;
    /* a pickler numbers the memo consecutively */
    if (slot >= m->bytes) return FAIL(m, "slot %zu of the memo exceeds a program of %zu bytes", slot, m->bytes);
    void *at = m->memo.at;
    const bool grown = grow(m, &at, &m->memo.capacity, slot + 1, sizeof *v);
    m->memo.at = at;
    if (!grown) return false;
    if (m->memo.at[slot].kind == VALUE_NOTHING) m->memo.count++;
    m->memo.at[slot] = *v;
    return true;
}

static bool get_memo(machine *m, size_t slot)
{
    if (slot >= m->memo.capacity || m->memo.at[slot].kind == VALUE_NOTHING)
        return FAIL(m, "slot %zu of the memo is empty", slot);
    return push(m, m->memo.at[slot]);
}

/* ---- arguments in the program ---- */

/* The next n bytes; NULL if the program ends before that. */
static const unsigned char *take(machine *m, uint64_t n)
{
    if (n > m->bytes - m->at) {
        FAIL(m, "the program ends inside an instruction");
        return NULL;
    }
    m->at += (size_t)n;
    return m->program + (m->at - (size_t)n);
}

/* An unsigned little-endian number of n bytes. */
static bool take_number(machine *m, int n, uint64_t *number)
{
    const unsigned char *p = take(m, (uint64_t)n);
    if (!p) return false;
    *number = 0;
    for (int i = n - 1; i >= 0; i--) *number = *number << 8 | p[i];
    return true;
}

/* A line, without its end. */
static bool take_line(machine *m, const char **text, size_t *length)
{
    const unsigned char *from = m->program + m->at;
    const unsigned char *end = memchr(from, '\n', m->bytes - m->at);
    if (!end) return FAIL(m, "the program ends inside a name");
    *text = (const char *)from;
    *length = (size_t)(end - from);
    m->at += *length + 1;
    return true;
}

/* ---- instructions: plain values ---- */

static bool push_integer(machine *m, int64_t n)
{
    return push(m, (value){ .kind = VALUE_INTEGER, .integer = n });
}

static bool run_none(machine *m)
{
    return push(m, (value){ .kind = VALUE_NONE });
}

static bool run_true(machine *m)
{
    return push(m, (value){ .kind = VALUE_BOOL, .integer = 1 });
}

static bool run_false(machine *m)
{
    return push(m, (value){ .kind = VALUE_BOOL, .integer = 0 });
}

static bool run_int(machine *m)
{
    uint64_t n;
    return take_number(m, 4, &n) &&
           push_integer(m, n < UINT64_C(0x80000000) ? (int64_t)n : (int64_t)n - (INT64_C(1) << 32));
}

static bool run_int1(machine *m)
{
    uint64_t n;
    return take_number(m, 1, &n) && push_integer(m, (int64_t)n);
}

static bool run_int2(machine *m)
{
    uint64_t n;
    return take_number(m, 2, &n) && push_integer(m, (int64_t)n);
}

/* Two's complement of any length; none: 0. */
static bool push_long(machine *m, uint64_t length)
{
    if (length > 8) return FAIL(m, "an integer of %llu bytes is too large", (unsigned long long)length);
    const unsigned char *p = take(m, length);
    if (!p) return false;
    uint64_t n = length && p[length - 1] & 0x80 ? UINT64_MAX : 0;
    for (uint64_t i = length; i-- > 0;) n = n << 8 | p[i];
    int64_t integer;
    memcpy(&integer, &n, sizeof integer);
    return push_integer(m, integer);
}

static bool run_long1(machine *m)
{
    uint64_t length;
    return take_number(m, 1, &length) && push_long(m, length);
}

static bool run_long4(machine *m)
{
    uint64_t length;
    return take_number(m, 4, &length) && push_long(m, length);
}

/* Float values are not used. */
static bool run_float(machine *m)
{
    return take(m, 8) && push(m, (value){ .kind = VALUE_FLOAT });
}

static bool push_text(machine *m, uint64_t length)
{
    const unsigned char *p = take(m, length);
    if (!p) return false;
    if (!kr_utf8_is_valid((const char *)p, (size_t)length)) return FAIL(m, "a text is not UTF-8");
    return push(m, (value){ .kind = VALUE_TEXT, .length = (uint32_t)length, .text = (const char *)p });
}

static bool run_text1(machine *m)
{
    uint64_t length;
    return take_number(m, 1, &length) && push_text(m, length);
}

static bool run_text4(machine *m)
{
    uint64_t length;
    return take_number(m, 4, &length) && push_text(m, length);
}

static bool run_text8(machine *m)
{
    uint64_t length;
    return take_number(m, 8, &length) && push_text(m, length);
}

/* ---- instructions: tuples and dictionaries ---- */

static bool run_mark(machine *m)
{
    void *at = m->marks.at;
    const bool grown = grow(m, &at, &m->marks.capacity, m->marks.count + 1, sizeof *m->marks.at);
    m->marks.at = at;
    if (grown) m->marks.at[m->marks.count++] = m->stack.count;
    return grown;
}

static bool push_tuple(machine *m, const value *items, size_t n)
{
    if (!items) return false;
    value *copy = NULL;
    if (n) {
        copy = kr_pickle_alloc(m, n * sizeof *copy);
        if (!copy) return false;
        memcpy(copy, items, n * sizeof *copy);
    }
    return push(m, (value){ .kind = VALUE_TUPLE, .length = (uint32_t)n, .items = copy });
}

static bool run_tuple0(machine *m)
{
    return push(m, (value){ .kind = VALUE_TUPLE });
}

static bool run_tuple1(machine *m)
{
    return push_tuple(m, pop(m, 1), 1);
}

static bool run_tuple2(machine *m)
{
    return push_tuple(m, pop(m, 2), 2);
}

static bool run_tuple3(machine *m)
{
    return push_tuple(m, pop(m, 3), 3);
}

static bool run_tuple(machine *m)
{
    size_t n = 0;
    const value *items = pop_marked(m, &n);
    return push_tuple(m, items, n);
}

static bool run_dict(machine *m)
{
    value made;
    return kr_pickle_dict(m, false, &made) && push(m, made);
}

static bool run_setitem(machine *m)
{
    const value *pair = pop(m, 2);
    const value *target = pair ? top(m) : NULL;
    return target && kr_pickle_put(m, target, pair, 1);
}

static bool run_setitems(machine *m)
{
    size_t n = 0;
    const value *pairs = pop_marked(m, &n);
    const value *target = pairs ? top(m) : NULL;
    if (!target) return false;
    if (n % 2) return FAIL(m, "a dictionary's last key has no value");
    return kr_pickle_put(m, target, pairs, n / 2);
}

/* ---- instructions: memo ---- */

static bool run_put1(machine *m)
{
    uint64_t slot;
    return take_number(m, 1, &slot) && set_memo(m, (size_t)slot);
}

static bool run_put4(machine *m)
{
    uint64_t slot;
    return take_number(m, 4, &slot) && set_memo(m, (size_t)slot);
}

static bool run_memoize(machine *m)
{
    return set_memo(m, m->memo.count);
}

static bool run_get1(machine *m)
{
    uint64_t slot;
    return take_number(m, 1, &slot) && get_memo(m, (size_t)slot);
}

static bool run_get4(machine *m)
{
    uint64_t slot;
    return take_number(m, 4, &slot) && get_memo(m, (size_t)slot);
}

/* ---- instructions: objects ---- */

static bool run_global(machine *m)
{
    const char *module = NULL, *name = NULL;
    size_t module_length = 0, name_length = 0;
    value made;
    return take_line(m, &module, &module_length) && take_line(m, &name, &name_length) &&
           kr_pickle_global(m, module, module_length, name, name_length, &made) && push(m, made);
}

static bool run_stack_global(machine *m)
{
    const value *names = pop(m, 2);
    if (!names) return false;
    if (names[0].kind != VALUE_TEXT || names[1].kind != VALUE_TEXT) return FAIL(m, "a global's name is not text");
    value made;
    return kr_pickle_global(m, names[0].text, names[0].length, names[1].text, names[1].length, &made) && push(m, made);
}

static bool run_reduce(machine *m)
{
    const value *call = pop(m, 2);
    value made;
    return call && kr_pickle_call(m, &call[0], &call[1], &made) && push(m, made);
}

static bool run_build(machine *m)
{
    const value *state = pop(m, 1);
    const value *target = state ? top(m) : NULL;
    return target && kr_pickle_set_state(m, target, state);
}

static bool run_persistent_id(machine *m)
{
    const value *id = pop(m, 1);
    value made;
    return id && kr_pickle_storage(m, id, &made) && push(m, made);
}

/* The length of a frame; only needed by readers of streams. */
static bool run_frame(machine *m)
{
    uint64_t length;
    return take_number(m, 8, &length) &&
           kr_require(m->ctx, length <= m->bytes - m->at, KR_ERR_FORMAT,
                      "a frame of %llu bytes reaches beyond the program", (unsigned long long)length);
}

/* ---- the machine ---- */

typedef struct instruction {
    const char *name;
    bool (*run)(machine *m); /* NULL: a known instruction that is not supported */
} instruction;

enum { STOP = '.', PROTO = 0x80 };

static const instruction instructions[256] = {
    ['('] = { "MARK", run_mark },
    [')'] = { "EMPTY_TUPLE", run_tuple0 },
    ['}'] = { "EMPTY_DICT", run_dict },
    ['B'] = { "BINBYTES", NULL },
    ['C'] = { "SHORT_BINBYTES", NULL },
    ['F'] = { "FLOAT", NULL },
    ['G'] = { "BINFLOAT", run_float },
    ['I'] = { "INT", NULL },
    ['J'] = { "BININT", run_int },
    ['K'] = { "BININT1", run_int1 },
    ['L'] = { "LONG", NULL },
    ['M'] = { "BININT2", run_int2 },
    ['N'] = { "NONE", run_none },
    ['P'] = { "PERSID", NULL },
    ['Q'] = { "BINPERSID", run_persistent_id },
    ['R'] = { "REDUCE", run_reduce },
    ['S'] = { "STRING", NULL },
    ['T'] = { "BINSTRING", NULL },
    ['U'] = { "SHORT_BINSTRING", NULL },
    ['V'] = { "UNICODE", NULL },
    ['X'] = { "BINUNICODE", run_text4 },
    [']'] = { "EMPTY_LIST", NULL },
    ['0'] = { "POP", NULL },
    ['1'] = { "POP_MARK", NULL },
    ['2'] = { "DUP", NULL },
    ['a'] = { "APPEND", NULL },
    ['b'] = { "BUILD", run_build },
    ['c'] = { "GLOBAL", run_global },
    ['d'] = { "DICT", NULL },
    ['e'] = { "APPENDS", NULL },
    ['g'] = { "GET", NULL },
    ['h'] = { "BINGET", run_get1 },
    ['i'] = { "INST", NULL },
    ['j'] = { "LONG_BINGET", run_get4 },
    ['l'] = { "LIST", NULL },
    ['o'] = { "OBJ", NULL },
    ['p'] = { "PUT", NULL },
    ['q'] = { "BINPUT", run_put1 },
    ['r'] = { "LONG_BINPUT", run_put4 },
    ['s'] = { "SETITEM", run_setitem },
    ['t'] = { "TUPLE", run_tuple },
    ['u'] = { "SETITEMS", run_setitems },
    [PROTO] = { "PROTO", NULL },
    [0x81] = { "NEWOBJ", NULL },
    [0x82] = { "EXT1", NULL },
    [0x83] = { "EXT2", NULL },
    [0x84] = { "EXT4", NULL },
    [0x85] = { "TUPLE1", run_tuple1 },
    [0x86] = { "TUPLE2", run_tuple2 },
    [0x87] = { "TUPLE3", run_tuple3 },
    [0x88] = { "NEWTRUE", run_true },
    [0x89] = { "NEWFALSE", run_false },
    [0x8a] = { "LONG1", run_long1 },
    [0x8b] = { "LONG4", run_long4 },
    [0x8c] = { "SHORT_BINUNICODE", run_text1 },
    [0x8d] = { "BINUNICODE8", run_text8 },
    [0x8e] = { "BINBYTES8", NULL },
    [0x8f] = { "EMPTY_SET", NULL },
    [0x90] = { "ADDITEMS", NULL },
    [0x91] = { "FROZENSET", NULL },
    [0x92] = { "NEWOBJ_EX", NULL },
    [0x93] = { "STACK_GLOBAL", run_stack_global },
    [0x94] = { "MEMOIZE", run_memoize },
    [0x95] = { "FRAME", run_frame },
    [0x96] = { "BYTEARRAY8", NULL },
    [0x97] = { "NEXT_BUFFER", NULL },
    [0x98] = { "READONLY_BUFFER", NULL },
};

static bool step(machine *m, unsigned char code)
{
    const instruction *known = &instructions[code];
    if (known->run) return known->run(m);
    if (known->name) return FAIL(m, "the instruction %s creates neither tensors nor dictionaries of them", known->name);
    return FAIL(m, "0x%02x is not an instruction", code);
}

/* Runs to the end; *result is then the only value on the stack. */
static bool run(machine *m, const value **result)
{
    for (;;) {
        const size_t at = m->at;
        const unsigned char *code = take(m, 1);
        if (!code) return kr_blame(m->ctx, "the pickle at its end");
        if (*code == STOP) break;
        if (!step(m, *code)) return kr_blame(m->ctx, "the pickle at byte %zu", at);
    }
    if (m->at != m->bytes) return FAIL(m, "the pickle stops at byte %zu, but has %zu", m->at - 1, m->bytes);
    if (m->stack.count != 1 || m->marks.count != 0)
        return FAIL(m, "the pickle leaves %zu values and %zu marks, but must leave one value", m->stack.count,
                    m->marks.count);
    *result = m->stack.at;
    return true;
}

static bool begin(machine *m)
{
    if (m->bytes > most_bytes)
        return FAIL(m, "the pickle has %zu bytes, but at most %zu are accepted", m->bytes, most_bytes);
    if (m->bytes < 2 || m->program[0] != PROTO || m->program[1] < PROTOCOL_FIRST || m->program[1] > PROTOCOL_LAST)
        return FAIL(m, "the pickle does not begin with a protocol from %d to %d", PROTOCOL_FIRST, PROTOCOL_LAST);
    m->at = 2;
    return reserve(m); /* so that an empty stack has an address too */
}

bool kr_pickle_run(kr_pickle *result, kr_ctx *ctx, kr_arena *arena, const unsigned char *program, size_t bytes)
{
    machine m = { .ctx = ctx, .program = program, .bytes = bytes };
    kr_arena_init(&m.arena, &ctx->memory, BLOCK_BYTES);
    const value *root = NULL;
    const bool done = begin(&m) && run(&m, &root) && kr_pickle_finish(&m, root, arena, result);
    kr_memory_free(&ctx->memory, m.stack.at, m.stack.capacity * sizeof *m.stack.at);
    kr_memory_free(&ctx->memory, m.memo.at, m.memo.capacity * sizeof *m.memo.at);
    kr_memory_free(&ctx->memory, m.marks.at, m.marks.capacity * sizeof *m.marks.at);
    kr_arena_deinit(&m.arena);
    return done;
}
