/* torch_write.c - a torch file: the pickle of a dictionary of tensors, and their storages, stored uncompressed in a
 * zip.
 *
 *   archive/data.pkl  archive/byteorder  archive/data/0  archive/data/1  ..  archive/version
 *
 * Each member begins at a multiple of 64 bytes, padded by an extra field in its header, as torch does: a file can be
 * mapped and used in memo_index.
 */
#include "io/torch_write.h"

#include "base/device_memory.h"

#include "io/compose.h"
#include "io/crc32.h"
#include "io/pickle.h"
#include "io/safetensors_impl.h"
#include "io/zip.h"

enum {
    ALIGN = 64,
    NAME_BYTES = 48,
    HEADER_BYTES = 256, /* at most: local header, name, extra fields */
    FIXED_MEMBERS = 3,  /* data.pkl, byteorder, version */
    VERSION_NEEDED = 45,
    UTF8_NAMES = 1 << 11,
    FIRST_DAY = 1 << 5 | 1, /* zip's first date: the first day of 1980 */
    PADDING_FIELD = 0x4246  /* "FB" */
};

typedef struct member {
    char name[NAME_BYTES];
    const void *data;
    uint64_t bytes, header; /* offset of its header */
    uint32_t crc;
} member;

typedef struct torch_writer {
    kr_ctx *ctx;
    kr_arena arena;
    uint64_t most_32;
    const kr_named *const *tensors;
    int64_t count;
    int64_t *storage;         /* [count]: index of each tensor's storage */
    const kr_named **holders; /* [nstorages]: the longest of the tensors in it */
    int64_t nstorages;
    member *members;
    int64_t nmembers;
} torch_writer;

/* ---- the pickle ---- */

enum {
    MEMO_REBUILD,
    MEMO_ORDERED_DICT,
    MEMO_STORAGE,
    MEMO_LOCATION,
    MEMO_TYPES,
    MEMO_COUNT = MEMO_TYPES + KR_DTYPE_I64 + 1
};

typedef struct pickler {
    kr_composer *c;
    bool known[MEMO_COUNT];
} pickler;

static void put_code(pickler *p, int code)
{
    kr_put_bytes(p->c, (uint64_t)code, 1);
}

static void put_text(pickler *p, const char *text)
{
    put_code(p, 'X');
    kr_put_bytes(p->c, strlen(text), 4);
    kr_put_text(p->c, text);
}

static void put_integer(pickler *p, uint64_t n)
{
    const int bytes = n < 0x100 ? 1 : n < 0x10000 ? 2 : n < 0x80000000 ? 4 : 8;
    put_code(p, bytes == 1 ? 'K' : bytes == 2 ? 'M' : bytes == 4 ? 'J' : 0x8a);
    if (bytes == 8) put_code(p, 8);
    kr_put_bytes(p->c, n, bytes);
}

/* True at the first use of a value: it must then be put, and remember() called. */
static bool is_new(pickler *p, int memo_index)
{
    if (!p->known[memo_index]) return true;
    put_code(p, 'h');
    put_code(p, memo_index);
    return false;
}

static void remember(pickler *p, int memo_index)
{
    put_code(p, 'q');
    put_code(p, memo_index);
    p->known[memo_index] = true;
}

static void put_global(pickler *p, int memo_index, const char *module, const char *name)
{
    if (!is_new(p, memo_index)) return;
    put_code(p, 'c');
    kr_put_text(p->c, module);
    put_code(p, '\n');
    kr_put_text(p->c, name);
    put_code(p, '\n');
    remember(p, memo_index);
}

static void put_shared_text(pickler *p, int memo_index, const char *text)
{
    if (!is_new(p, memo_index)) return;
    put_text(p, text);
    remember(p, memo_index);
}

static void put_integers(pickler *p, const int64_t *n, int count)
{
    if (count > 3) put_code(p, '(');
    for (int i = 0; i < count; i++) put_integer(p, (uint64_t)n[i]);
    put_code(p, count == 0 ? ')' : count <= 3 ? 0x84 + count : 't');
}

static void put_storage(pickler *p, const torch_writer *w, int64_t number)
{
    const kr_named *holder = w->holders[number];
    char key[24];
    snprintf(key, sizeof key, "%lld", (long long)number);
    put_code(p, '(');
    put_shared_text(p, MEMO_STORAGE, "storage");
    put_global(p, MEMO_TYPES + (int)holder->dtype, "torch", kr_torch_type_of(holder->dtype)->name);
    put_text(p, key);
    put_shared_text(p, MEMO_LOCATION, "cpu");
    put_integer(p, (uint64_t)holder->count);
    put_code(p, 't');
    put_code(p, 'Q');
}

static void put_tensor(pickler *p, const torch_writer *w, int64_t i)
{
    const kr_named *tensor = w->tensors[i];
    kr_elements layout = { .shape = tensor->shape, .count = tensor->count };
    kr_elements_row_major(&layout);
    put_text(p, tensor->name);
    put_global(p, MEMO_REBUILD, "torch._utils", "_rebuild_tensor_v2");
    put_code(p, '(');
    put_storage(p, w, w->storage[i]);
    put_integer(p, 0);
    put_integers(p, layout.shape.dims, layout.shape.rank);
    put_integers(p, layout.strides, layout.shape.rank);
    put_code(p, 0x89); /* False: requires_grad */
    put_global(p, MEMO_ORDERED_DICT, "collections", "OrderedDict");
    put_code(p, ')');
    put_code(p, 'R');
    put_code(p, 't');
    put_code(p, 'R');
}

static void compose_pickle(kr_composer *c, const torch_writer *w)
{
    pickler p = { .c = c };
    kr_put(c, "\x80\x02}", 3);
    if (w->count) put_code(&p, '(');
    for (int64_t i = 0; i < w->count; i++) put_tensor(&p, w, i);
    if (w->count) put_code(&p, 'u');
    put_code(&p, '.');
}

/* ---- headers of the zip ---- */

static uint64_t or_refer(const torch_writer *w, uint64_t n)
{
    return n >= w->most_32 ? KR_ZIP_IS_64 : n;
}

/* Fields common to local and central header: from the version to the length of the name. */
static void put_common(kr_composer *c, const torch_writer *w, const member *m)
{
    kr_put_bytes(c, VERSION_NEEDED, 2);
    kr_put_bytes(c, UTF8_NAMES, 2);
    kr_put_bytes(c, 0, 2); /* method: stored */
    kr_put_bytes(c, 0, 2); /* time: midnight */
    kr_put_bytes(c, FIRST_DAY, 2);
    kr_put_bytes(c, m->crc, 4);
    kr_put_bytes(c, or_refer(w, m->bytes), 4);
    kr_put_bytes(c, or_refer(w, m->bytes), 4);
    kr_put_bytes(c, strlen(m->name), 2);
}

static void compose_local(kr_composer *c, const torch_writer *w, const member *m)
{
    const uint64_t sizes = m->bytes >= w->most_32 ? 20 : 0;
    const uint64_t data = m->header + KR_ZIP_LOCAL_BYTES + strlen(m->name) + sizes + 4;
    const uint64_t padding = (ALIGN - data % ALIGN) % ALIGN;
    kr_put_bytes(c, KR_ZIP_LOCAL, 4);
    put_common(c, w, m);
    kr_put_bytes(c, sizes + 4 + padding, 2);
    kr_put_text(c, m->name);
    if (sizes) {
        kr_put_bytes(c, KR_ZIP_EXTRA64, 2);
        kr_put_bytes(c, 16, 2);
        kr_put_bytes(c, m->bytes, 8);
        kr_put_bytes(c, m->bytes, 8);
    }
    kr_put_bytes(c, PADDING_FIELD, 2);
    kr_put_bytes(c, padding, 2);
    for (uint64_t i = 0; i < padding; i++) kr_put_bytes(c, 0, 1);
}

static void put_central(kr_composer *c, const torch_writer *w, const member *m)
{
    const uint64_t sizes = m->bytes >= w->most_32 ? 16 : 0, memo_index = m->header >= w->most_32 ? 8 : 0;
    kr_put_bytes(c, KR_ZIP_CENTRAL, 4);
    kr_put_bytes(c, VERSION_NEEDED, 2); /* made by */
    put_common(c, w, m);
    kr_put_bytes(c, sizes + memo_index ? 4 + sizes + memo_index : 0, 2);
    kr_put_bytes(c, 0, 2); /* comment */
    kr_put_bytes(c, 0, 4); /* disk number, internal attributes */
    kr_put_bytes(c, 0, 4); /* external attributes */
    kr_put_bytes(c, or_refer(w, m->header), 4);
    kr_put_text(c, m->name);
    if (sizes + memo_index) {
        kr_put_bytes(c, KR_ZIP_EXTRA64, 2);
        kr_put_bytes(c, sizes + memo_index, 2);
        for (uint64_t i = 0; i < sizes; i += 8) kr_put_bytes(c, m->bytes, 8);
        if (memo_index) kr_put_bytes(c, m->header, 8);
    }
}

static void put_end64(kr_composer *c, const torch_writer *w, uint64_t from, uint64_t bytes)
{
    kr_put_bytes(c, KR_ZIP_END64, 4);
    kr_put_bytes(c, KR_ZIP_END64_BYTES - 12, 8);
    kr_put_bytes(c, VERSION_NEEDED, 2);
    kr_put_bytes(c, VERSION_NEEDED, 2);
    kr_put_bytes(c, 0, 8); /* this disk, the directory's disk */
    kr_put_bytes(c, (uint64_t)w->nmembers, 8);
    kr_put_bytes(c, (uint64_t)w->nmembers, 8);
    kr_put_bytes(c, bytes, 8);
    kr_put_bytes(c, from, 8);
    kr_put_bytes(c, KR_ZIP_LOCATOR, 4);
    kr_put_bytes(c, 0, 4); /* disk */
    kr_put_bytes(c, from + bytes, 8);
    kr_put_bytes(c, 1, 4); /* number of disks */
}

/* The directory, which begins at `from`, and the end records. */
static void compose_directory(kr_composer *c, const torch_writer *w, uint64_t from)
{
    for (int64_t i = 0; i < w->nmembers; i++) put_central(c, w, &w->members[i]);
    const uint64_t bytes = c->length, members = w->nmembers < 0xFFFF ? (uint64_t)w->nmembers : 0xFFFF;
    if (members == 0xFFFF || bytes >= w->most_32 || from >= w->most_32) put_end64(c, w, from, bytes);
    kr_put_bytes(c, KR_ZIP_END, 4);
    kr_put_bytes(c, 0, 4); /* this disk, the directory's disk */
    kr_put_bytes(c, members, 2);
    kr_put_bytes(c, members, 2);
    kr_put_bytes(c, or_refer(w, bytes), 4);
    kr_put_bytes(c, or_refer(w, from), 4);
    kr_put_bytes(c, 0, 2); /* comment */
}

/* ---- the file ---- */

static bool no_memory(torch_writer *w)
{
    return kr_fail(w->ctx, KR_ERR_NOMEM, "no memory for a torch file of %lld tensors", (long long)w->count);
}

/* Storages in the order of the tensors. */
static bool plan_storages(torch_writer *w)
{
    w->storage = kr_arena_alloc(&w->arena, (size_t)w->count * sizeof *w->storage);
    w->holders = kr_arena_alloc(&w->arena, (size_t)w->count * sizeof *w->holders);
    if (!w->storage || !w->holders) return no_memory(w);
    if (!kr_named_find_tied(w->ctx, w->tensors, w->count, w->storage)) return false;
    for (int64_t i = 0; i < w->count; i++) {
        const int64_t first = w->storage[i]; /* of an earlier tensor: its storage's index is known */
        const int64_t number = first < i ? w->storage[first] : w->nstorages++;
        w->storage[i] = number;
        if (first == i || w->tensors[i]->count > w->holders[number]->count) w->holders[number] = w->tensors[i];
    }
    return true;
}

typedef struct checksum {
    const kr_crc32_table *table;
    uint32_t crc;
} checksum;

static bool check_piece(void *user, const void *piece, size_t bytes)
{
    checksum *c = user;
    c->crc = kr_crc32(c->table, c->crc, piece, bytes);
    return true;
}

static bool add_member(torch_writer *w, const kr_crc32_table *table, const char *name, const void *data, uint64_t bytes)
{
    member *m = &w->members[w->nmembers++];
    checksum c = { table, 0 };
    const bool done = kr_each_block(w->ctx, data, (size_t)bytes, check_piece, &c);
    *m = (member){ .data = data, .bytes = bytes, .crc = c.crc };
    snprintf(m->name, sizeof m->name, "archive/%s", name);
    return done;
}

static bool plan_members(torch_writer *w)
{
    kr_composer pickle = { .text = NULL };
    compose_pickle(&pickle, w);
    const size_t bytes = pickle.length;
    pickle = (kr_composer){ .text = kr_arena_alloc(&w->arena, bytes) };
    w->members = kr_arena_alloc(&w->arena, (size_t)(w->nstorages + FIXED_MEMBERS) * sizeof *w->members);
    if (!pickle.text || !w->members) return no_memory(w);
    compose_pickle(&pickle, w);
    kr_crc32_table table;
    kr_crc32_prepare(&table);
    add_member(w, &table, "data.pkl", pickle.text, bytes);
    add_member(w, &table, "byteorder", "little", 6);
    for (int64_t i = 0; i < w->nstorages; i++) {
        char name[32];
        snprintf(name, sizeof name, "data/%lld", (long long)i);
        if (!add_member(w, &table, name, w->holders[i]->data, w->holders[i]->bytes)) return false;
    }
    add_member(w, &table, "version", "3\n", 2);
    return true;
}

static bool write_members(torch_writer *w, kr_file_writer *file, uint64_t *at)
{
    for (int64_t i = 0; i < w->nmembers; i++) {
        member *m = &w->members[i];
        m->header = *at;
        char header[HEADER_BYTES];
        kr_composer c = { .text = header };
        compose_local(&c, w, m);
        if (!kr_file_write(file, header, c.length) || !kr_file_write(file, m->data, (size_t)m->bytes)) return false;
        *at += c.length + m->bytes;
    }
    return true;
}

static bool write_directory(torch_writer *w, kr_file_writer *file, uint64_t from)
{
    kr_composer directory = { .text = NULL };
    compose_directory(&directory, w, from);
    const size_t bytes = directory.length;
    directory = (kr_composer){ .text = kr_arena_alloc(&w->arena, bytes) };
    if (!directory.text) return no_memory(w);
    compose_directory(&directory, w, from);
    return kr_file_write(file, directory.text, bytes);
}

bool kr_torch_write(kr_file_writer *file, const kr_named *const *tensors, int64_t count, uint64_t most_32)
{
    enum { BLOCK_BYTES = 1 << 14 };
    torch_writer w = { .ctx = file->ctx, .most_32 = most_32, .tensors = tensors, .count = count };
    kr_arena_init(&w.arena, &w.ctx->memory, BLOCK_BYTES);
    uint64_t at = 0;
    const bool done = kr_safetensors_check_machine(w.ctx) && plan_storages(&w) && plan_members(&w) &&
                      write_members(&w, file, &at) && write_directory(&w, file, at);
    kr_arena_deinit(&w.arena);
    return done;
}
