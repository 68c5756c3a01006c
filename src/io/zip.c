/* zip.c - reads the directory, as untrusted input: every count, offset and size is checked against the file, members do
 * not overlap, and names are unique. */
#include "io/zip.h"

#include "io/crc32.h"
#include "io/heapsort.h"
#include "io/quote.h"

#include <string.h>

enum { ENCRYPTED = 1 << 0, SIZES_FOLLOW = 1 << 3, STRONGLY_ENCRYPTED = 1 << 6, MASKED = 1 << 13 };

typedef struct reader {
    kr_ctx *ctx;
    const unsigned char *file;
    size_t bytes;
} reader;

typedef struct directory {
    uint64_t from, bytes, count;
    uint64_t end; /* offset of the next structure */
} directory;

static uint64_t number_at(const unsigned char *p, int bytes)
{
    uint64_t n = 0;
    for (int i = bytes - 1; i >= 0; i--) n = n << 8 | p[i];
    return n;
}

static uint32_t u16(const unsigned char *p)
{
    return (uint32_t)number_at(p, 2);
}

static uint32_t u32(const unsigned char *p)
{
    return (uint32_t)number_at(p, 4);
}

static uint64_t u64(const unsigned char *p)
{
    return number_at(p, 8);
}

static kr_quote quoted(const kr_zip_member *member)
{
    return kr_quote_of(member->name, member->name_length);
}

/* ---- the end ---- */

/* A field of the 32-bit end record has the same value as the 64-bit one, or refers to it. */
static bool agrees(uint64_t narrow, uint64_t wide, uint64_t refers)
{
    return narrow == wide || narrow == refers;
}

static bool read_end64(const reader *r, const unsigned char *end, directory *d)
{
    const uint64_t locator_at = (uint64_t)(end - r->file) - KR_ZIP_LOCATOR_BYTES;
    const unsigned char *locator = r->file + locator_at;
    const uint64_t at = u64(locator + 8);
    if (u32(locator + 4) != 0 || u32(locator + 16) > 1)
        return kr_fail(r->ctx, KR_ERR_FORMAT, "the zip is one of several parts");
    if (at > locator_at || locator_at - at < KR_ZIP_END64_BYTES || u32(r->file + at) != KR_ZIP_END64 ||
        u64(r->file + at + 4) != locator_at - at - 12)
        return kr_fail(r->ctx, KR_ERR_FORMAT, "the zip's 64-bit end is not at %llu, where its locator says",
                       (unsigned long long)at);
    const unsigned char *wide = r->file + at;
    if (u32(wide + 16) != 0 || u32(wide + 20) != 0 || u64(wide + 24) != u64(wide + 32))
        return kr_fail(r->ctx, KR_ERR_FORMAT, "the zip is one of several parts");
    *d = (directory){ .count = u64(wide + 32), .bytes = u64(wide + 40), .from = u64(wide + 48), .end = at };
    return kr_require(r->ctx,
                      agrees(u16(end + 10), d->count, 0xFFFF) && agrees(u32(end + 12), d->bytes, KR_ZIP_IS_64) &&
                          agrees(u32(end + 16), d->from, KR_ZIP_IS_64),
                      KR_ERR_FORMAT, "the zip's two ends disagree");
}

static bool read_end(const reader *r, directory *d)
{
    const unsigned char *end = r->file + (r->bytes >= KR_ZIP_END_BYTES ? r->bytes - KR_ZIP_END_BYTES : 0);
    if (r->bytes < KR_ZIP_END_BYTES || u32(end) != KR_ZIP_END || u16(end + 20) != 0)
        return kr_fail(r->ctx, KR_ERR_FORMAT,
                       "the zip has no end: its %zu bytes are cut off, or data was appended to it", r->bytes);
    if (u16(end + 4) != 0 || u16(end + 6) != 0 || u16(end + 8) != u16(end + 10))
        return kr_fail(r->ctx, KR_ERR_FORMAT, "the zip is one of several parts");
    const size_t before = (size_t)(end - r->file);
    if (before >= KR_ZIP_LOCATOR_BYTES && u32(end - KR_ZIP_LOCATOR_BYTES) == KR_ZIP_LOCATOR) {
        if (!read_end64(r, end, d)) return false;
    } else {
        *d = (directory){ .count = u16(end + 10), .bytes = u32(end + 12), .from = u32(end + 16), .end = before };
    }
    if (d->from > d->end || d->bytes != d->end - d->from)
        return kr_fail(r->ctx, KR_ERR_FORMAT,
                       "the zip's directory of %llu bytes at %llu does not reach to its end at %llu",
                       (unsigned long long)d->bytes, (unsigned long long)d->from, (unsigned long long)d->end);
    return kr_require(r->ctx, d->count <= d->bytes / KR_ZIP_CENTRAL_BYTES, KR_ERR_FORMAT,
                      "the zip's directory of %llu bytes cannot hold %llu members", (unsigned long long)d->bytes,
                      (unsigned long long)d->count);
}

/* ---- one member ---- */

/* Reads the 64-bit values, in this order, of those fields that refer to them. */
static bool read_extra(const reader *r, const unsigned char *extra, size_t length, const kr_zip_member *member,
                       uint64_t *const *fields, int nfields)
{
    const unsigned char *found = NULL;
    size_t found_bytes = 0;
    while (length > 0) {
        const size_t bytes = length < 4 ? length : u16(extra + 2);
        if (length < 4 || bytes > length - 4)
            return kr_fail(r->ctx, KR_ERR_FORMAT, "member '%s' of the zip: its extra fields are cut off",
                           quoted(member).text);
        if (u16(extra) == KR_ZIP_EXTRA64 && !found) {
            found = extra + 4;
            found_bytes = bytes;
        }
        extra += 4 + bytes;
        length -= 4 + bytes;
    }
    for (int i = 0; i < nfields; i++) {
        if (*fields[i] != KR_ZIP_IS_64) continue;
        if (found_bytes < 8)
            return kr_fail(r->ctx, KR_ERR_FORMAT, "member '%s' of the zip refers to 64-bit sizes that are not there",
                           quoted(member).text);
        *fields[i] = u64(found);
        found += 8;
        found_bytes -= 8;
    }
    return true;
}

/* Stored, not encrypted. */
static bool check_kind(const reader *r, const kr_zip_member *member, uint32_t flags, uint32_t method)
{
    if (flags & (ENCRYPTED | STRONGLY_ENCRYPTED | MASKED))
        return kr_fail(r->ctx, KR_ERR_FORMAT, "member '%s' of the zip is encrypted", quoted(member).text);
    return kr_require(r->ctx, method == 0, KR_ERR_FORMAT,
                      "member '%s' of the zip is compressed (method %u), but torch stores its members as they are",
                      quoted(member).text, (unsigned)method);
}

static bool check_name(const reader *r, const kr_zip_member *member)
{
    return kr_require(r->ctx, member->name_length > 0 && !memchr(member->name, 0, member->name_length), KR_ERR_FORMAT,
                      "member %lld of the zip has no name, or one with a zero byte", (long long)member->number);
}

/* The local header must agree, and the member's bytes must end before `end`. */
static bool read_local(const reader *r, kr_zip_member *member, uint64_t end, uint64_t bytes, uint32_t flags)
{
    const uint64_t at = member->header;
    if (at > end || end - at < KR_ZIP_LOCAL_BYTES || u32(r->file + at) != KR_ZIP_LOCAL)
        return kr_fail(r->ctx, KR_ERR_FORMAT, "member '%s' of the zip: there is no header at %llu", quoted(member).text,
                       (unsigned long long)at);
    const unsigned char *local = r->file + at;
    const uint64_t skip = KR_ZIP_LOCAL_BYTES + (uint64_t)u16(local + 26) + u16(local + 28);
    if (end - at < skip || bytes > end - at - skip)
        return kr_fail(r->ctx, KR_ERR_FORMAT,
                       "member '%s' of the zip: its %llu bytes from %llu on reach beyond the members' end at %llu",
                       quoted(member).text, (unsigned long long)bytes, (unsigned long long)(at + skip),
                       (unsigned long long)end);
    const bool same_name = u16(local + 26) == member->name_length &&
                           memcmp(local + KR_ZIP_LOCAL_BYTES, member->name, member->name_length) == 0;
    const bool same_sizes = u32(local + 14) == member->crc && agrees(u32(local + 18), bytes, KR_ZIP_IS_64) &&
                            agrees(u32(local + 22), bytes, KR_ZIP_IS_64);
    if (!same_name || u16(local + 6) != flags || u16(local + 8) != 0 || !(same_sizes || flags & SIZES_FOLLOW))
        return kr_fail(r->ctx, KR_ERR_FORMAT, "member '%s' of the zip: its header at %llu and the directory differ",
                       quoted(member).text, (unsigned long long)at);
    member->data = local + skip;
    member->bytes = (size_t)bytes;
    return true;
}

/* Reads the central header at `at`; returns its length, 0 after an error. */
static size_t read_central(const reader *r, const unsigned char *at, size_t left, uint64_t end, kr_zip_member *member)
{
    if (left < KR_ZIP_CENTRAL_BYTES || u32(at) != KR_ZIP_CENTRAL) {
        kr_fail(r->ctx, KR_ERR_FORMAT, "the zip's directory is cut off at member %lld", (long long)member->number);
        return 0;
    }
    const size_t name = u16(at + 28), extra = u16(at + 30), comment = u16(at + 32);
    const size_t whole = KR_ZIP_CENTRAL_BYTES + name + extra + comment;
    if (left < whole) {
        kr_fail(r->ctx, KR_ERR_FORMAT, "the zip's directory is cut off at member %lld", (long long)member->number);
        return 0;
    }
    member->name = (const char *)at + KR_ZIP_CENTRAL_BYTES;
    member->name_length = name;
    member->crc = u32(at + 16);
    const uint32_t flags = u16(at + 8);
    uint64_t packed = u32(at + 20), bytes = u32(at + 24), header = u32(at + 42);
    uint64_t *const fields[] = { &bytes, &packed, &header };
    if (!check_name(r, member) || !check_kind(r, member, flags, u16(at + 10)) ||
        !read_extra(r, at + KR_ZIP_CENTRAL_BYTES + name, extra, member, fields, 3) ||
        !kr_require(r->ctx, u16(at + 34) == 0, KR_ERR_FORMAT, "the zip is one of several parts") ||
        !kr_require(r->ctx, packed == bytes, KR_ERR_FORMAT,
                    "member '%s' of the zip is stored, but has two sizes: %llu and %llu bytes", quoted(member).text,
                    (unsigned long long)packed, (unsigned long long)bytes))
        return 0;
    member->header = header;
    return read_local(r, member, end, bytes, flags) ? whole : 0;
}

/* ---- all of them ---- */

static int compare_names(const void *first, const void *second)
{
    const kr_zip_member *a = first, *b = second;
    const size_t shorter = a->name_length < b->name_length ? a->name_length : b->name_length;
    const int order = memcmp(a->name, b->name, shorter);
    if (order) return order;
    return a->name_length < b->name_length ? -1 : a->name_length > b->name_length;
}

static int compare_places(const void *first, const void *second)
{
    const kr_zip_member *a = first, *b = second;
    return a->header < b->header ? -1 : a->header > b->header;
}

static bool check_members(const reader *r, kr_zip *zip)
{
    kr_sort_pointers(zip->by_name, zip->count, compare_places);
    for (int64_t i = 1; i < zip->count; i++) {
        const kr_zip_member *a = zip->by_name[i - 1], *b = zip->by_name[i];
        if (r->file + b->header < a->data + a->bytes)
            return kr_fail(r->ctx, KR_ERR_FORMAT, "members '%s' and '%s' of the zip overlap", quoted(a).text,
                           quoted(b).text);
    }
    kr_sort_pointers(zip->by_name, zip->count, compare_names);
    for (int64_t i = 1; i < zip->count; i++)
        if (compare_names(zip->by_name[i - 1], zip->by_name[i]) == 0)
            return kr_fail(r->ctx, KR_ERR_FORMAT, "the zip has two members of the name '%s'",
                           quoted(zip->by_name[i]).text);
    return true;
}

bool kr_zip_read(kr_zip *zip, kr_ctx *ctx, kr_arena *arena, const unsigned char *file, size_t bytes)
{
    const reader r = { ctx, file, bytes };
    directory d = { 0 };
    if (!read_end(&r, &d)) return false;
    zip->count = (int64_t)d.count;
    zip->members = kr_arena_alloc(arena, (size_t)d.count * sizeof *zip->members);
    zip->by_name = kr_arena_alloc(arena, (size_t)d.count * sizeof *zip->by_name);
    if (!zip->members || !zip->by_name)
        return kr_fail(ctx, KR_ERR_NOMEM, "no memory for %lld members of a zip", (long long)zip->count);
    size_t at = (size_t)d.from;
    for (int64_t i = 0; i < zip->count; i++) {
        kr_zip_member *member = &zip->members[i];
        *member = (kr_zip_member){ .number = i };
        const size_t length = read_central(&r, file + at, (size_t)d.end - at, d.from, member);
        if (length == 0) return false;
        zip->by_name[i] = member;
        at += length;
    }
    return kr_require(ctx, at == d.end, KR_ERR_FORMAT, "the zip's directory holds more than its %lld members",
                      (long long)zip->count) &&
           check_members(&r, zip);
}

const kr_zip_member *kr_zip_find(const kr_zip *zip, const char *name, size_t length)
{
    const kr_zip_member wanted = { .name = name, .name_length = length };
    int64_t low = 0, high = zip->count;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        const int order = compare_names(&wanted, zip->by_name[middle]);
        if (order == 0) return zip->by_name[middle];
        if (order < 0) high = middle;
        else low = middle + 1;
    }
    return NULL;
}

bool kr_zip_check(kr_ctx *ctx, const kr_zip_member *member)
{
    kr_crc32_table table;
    kr_crc32_prepare(&table);
    return kr_require(ctx, member->crc == 0 || kr_crc32(&table, 0, member->data, member->bytes) == member->crc,
                      KR_ERR_FORMAT, "member '%s' of the zip is damaged: its checksum does not match",
                      quoted(member).text);
}
