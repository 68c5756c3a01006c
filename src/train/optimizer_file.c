/* optimizer_file.c - the state of an optimizer as tensors of a file.
 *
 *   optimizer.step             i64 []     steps          optimizer.m.NAME, optimizer.v.NAME    AdamW's means
 *   optimizer.steps            i64 [n]    of each        optimizer.velocity.NAME               of SGD and Muon
 *   optimizer.master.NAME      f32 copy (16-bit)        optimizer.ema.NAME                    averages
 * NAME is the parameter's, followed by ":SEGMENT" where parts of it are stepped separately. Metadata: optimizer.version
 * "1", optimizer.kind, optimizer.params (a hash of names, types and shapes, 16 hex digits).
 *
 * With several ranks each writes its pieces as tensors [elements] "optimizer.WHAT.NAME@FIRST", FIRST being the first element
 * of the parameter, and rank 0 the numbers of steps and the metadata.
 *
 * Input is untrusted: everything is checked before the state changes.
 */
#include "train/optimizer_impl.h"

#include "base/device_memory.h"
#include "base/half.h"
#include "io/quote.h"
#include "nn/params_impl.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 512 };
static const char prefix[] = "optimizer.", version_key[] = "optimizer.version", version[] = "1";
static const char kind_key[] = "optimizer.kind", params_key[] = "optimizer.params";

typedef enum rule { ANY_FINITE, NOT_NEGATIVE, A_COUNT, ROUNDS_TO_PARAMETER } rule;
static const double most_count = 0x1p53; /* of steps: a limit above any real run and below overflow */

/* One tensor of the state. */
typedef struct kept {
    char name[NAME_BYTES];
    kr_dtype dtype;
    kr_shape shape;
    void *data;
    rule values;
    const kr_tensor *param; /* ROUNDS_TO_PARAMETER */
} kept;

/* False stops the visit. */
typedef bool visit_fn(void *user, const kept *tensor);

/* ---- all tensors, in their order ---- */

static bool name_is_whole(kr_ctx *ctx, const kr_param_row *row, int length)
{
    return kr_require(ctx, length >= 0 && length < NAME_BYTES, KR_ERR_ARG, "the name of %s is too long for a file",
                      row->name);
}

static bool visit_part(const kr_optimizer *opt, const kr_optimizer_slot *slot, const kr_optimizer_part *part,
                       visit_fn *visit, void *user)
{
    const kr_optimizer_piece *piece = part->pieces; /* of one rank: the whole part */
    const struct {
        const char *what;
        void *data;
        rule values;
    } all[] = { { "m", piece->m, ANY_FINITE },
                { "v", piece->v, NOT_NEGATIVE },
                { "velocity", piece->velocity, ANY_FINITE } };
    for (int i = 0; i < 3; i++) {
        if (!all[i].data) continue;
        kept tensor = { .dtype = slot->dtype, .shape = part->shape, .data = all[i].data, .values = all[i].values };
        const int length =
            snprintf(tensor.name, sizeof tensor.name, "%s%s.%s%s%s", prefix, all[i].what, slot->row->name,
                     part->segment ? ":" : "", part->segment ? part->segment->name : "");
        if (!name_is_whole(opt->ctx, slot->row, length) || !visit(user, &tensor)) return false;
    }
    return true;
}

static bool visit_slot(const kr_optimizer *opt, const kr_optimizer_slot *slot, visit_fn *visit, void *user)
{
    void *const data[] = { slot->master, slot->ema };
    static const char *const what[] = { "master", "ema" };
    for (int i = 0; i < 2; i++) {
        if (!data[i]) continue;
        kept tensor = { .dtype = slot->dtype,
                        .shape = kr_tensor_shape(slot->row->tensor),
                        .data = data[i],
                        .values = i == 0 ? ROUNDS_TO_PARAMETER : ANY_FINITE,
                        .param = slot->row->tensor };
        const int length = snprintf(tensor.name, sizeof tensor.name, "%s%s.%s", prefix, what[i], slot->row->name);
        if (!name_is_whole(opt->ctx, slot->row, length) || !visit(user, &tensor)) return false;
    }
    for (int p = 0; p < slot->nparts; p++)
        if (!visit_part(opt, slot, &slot->parts[p], visit, user)) return false;
    return true;
}

static bool visit_steps(const kr_optimizer *opt, visit_fn *visit, void *user)
{
    /* the visitor that writes a file only reads through the pointer */
    const kept step = { "optimizer.step", KR_DTYPE_I64, KR_SCALAR, (void *)(uintptr_t)&opt->step, A_COUNT, NULL };
    const kept steps = { "optimizer.steps", KR_DTYPE_I64, KR_SHAPE(opt->count), opt->steps, A_COUNT, NULL };
    return visit(user, &step) && visit(user, &steps);
}

/* What is kept of a piece; values of 16-bit parameters' copies are compared with the parameter's. */
typedef struct kept_of_piece {
    const char *what;
    void *data;
    rule values;
} kept_of_piece;
enum { KINDS = 5 };

static void list_kinds(const kr_optimizer_piece *piece, kept_of_piece list[KINDS])
{
    const kept_of_piece all[KINDS] = { { "m", piece->m, ANY_FINITE },
                                       { "v", piece->v, NOT_NEGATIVE },
                                       { "velocity", piece->velocity, ANY_FINITE },
                                       { "master", piece->master, ROUNDS_TO_PARAMETER },
                                       { "ema", piece->ema, ANY_FINITE } };
    memcpy(list, all, sizeof all);
}

/* This rank's pieces. */
static bool visit_pieces(const kr_optimizer *opt, visit_fn *visit, void *user)
{
    kr_piece_at at = KR_BEFORE_PIECES;
    for (const kr_optimizer_piece *piece; (piece = kr_optimizer_next_piece(opt, &at));) {
        const kr_optimizer_slot *slot = &opt->slots[at.slot];
        kept_of_piece kinds[KINDS];
        list_kinds(piece, kinds);
        for (int k = 0; k < KINDS; k++) {
            if (!kinds[k].data) continue;
            kept tensor = { .dtype = slot->dtype, .shape = KR_SHAPE(piece->count), .data = kinds[k].data };
            const int length = snprintf(tensor.name, sizeof tensor.name, "%s%s.%s@%lld", prefix, kinds[k].what,
                                        slot->row->name, (long long)piece->first);
            if (!name_is_whole(opt->ctx, slot->row, length) || !visit(user, &tensor)) return false;
        }
    }
    return true;
}

static bool visit_all(const kr_optimizer *opt, visit_fn *visit, void *user)
{
    if (!visit_steps(opt, visit, user)) return false;
    if (opt->ranks > 1) return visit_pieces(opt, visit, user);
    for (int64_t i = 0; i < opt->count; i++)
        if (!visit_slot(opt, &opt->slots[i], visit, user)) return false;
    return true;
}

static bool check_ema_is_out(const kr_optimizer *opt)
{
    return kr_require(opt->ctx, !opt->ema_is_in, KR_ERR_STATE,
                      "the parameters hold the averaged weights; call kr_optimizer_use_ema(optimizer, false) first");
}

/* ---- writing ---- */

static bool add(void *user, const kept *tensor)
{
    return kr_tensor_writer_add(user, tensor->name, tensor->dtype, tensor->shape, tensor->data) == KR_OK;
}

typedef struct digest {
    char text[17];
} digest;

static digest digest_of_params(const kr_optimizer *opt)
{
    digest d;
    snprintf(d.text, sizeof d.text, "%016" PRIx64, kr_params_structure_hash(opt->params));
    return d;
}

static bool add_metadata(const kr_optimizer *opt, kr_tensor_writer *writer)
{
    return check_ema_is_out(opt) && kr_tensor_writer_add_metadata(writer, version_key, version) == KR_OK &&
           kr_tensor_writer_add_metadata(writer, kind_key, kr_optimizer_kind_name(opt->options.kind)) == KR_OK &&
           kr_tensor_writer_add_metadata(writer, params_key, digest_of_params(opt).text) == KR_OK;
}

bool kr_optimizer_add_steps(const kr_optimizer *opt, kr_tensor_writer *writer)
{
    return add_metadata(opt, writer) && visit_steps(opt, add, writer);
}

bool kr_optimizer_add_pieces(const kr_optimizer *opt, kr_tensor_writer *writer)
{
    return check_ema_is_out(opt) && visit_pieces(opt, add, writer);
}

kr_status kr_optimizer_snapshot(const kr_optimizer *opt, kr_tensor_writer *writer)
{
    if (!opt || !writer) return KR_ERR_ARG;
    if (!kr_optimizer_ready(opt)) return opt->ctx->status;
    const bool saved = add_metadata(opt, writer) && visit_all(opt, add, writer);
    if (!saved) kr_blame(opt->ctx, "optimizer.snapshot");
    return opt->ctx->status;
}

/* ---- reading ---- */

typedef struct loading {
    const kr_optimizer *opt;
    kr_ctx *ctx;
    const kr_tensor_file *file;
    int64_t count; /* tensors that were asked for */
    const char *wanted;
    bool is_known;
} loading;

#define QUOTED(s) kr_quote_of((s), strlen(s)).text

/* Element i of a tensor in the file, which need not be aligned. */
static double element(const kr_tensor_file_item *item, int64_t i)
{
    const char *at = (const char *)item->data + kr_dtype_offset(item->dtype, i);
    if (item->dtype == KR_DTYPE_F32) {
        float x;
        memcpy(&x, at, sizeof x);
        return (double)x;
    }
    if (item->dtype == KR_DTYPE_F64) {
        double x;
        memcpy(&x, at, sizeof x);
        return x;
    }
    int64_t n;
    memcpy(&n, at, sizeof n);
    return (double)n;
}

/* bits: of the parameter's element. */
static bool rounds_to(double x, const kr_tensor *param, uint16_t bits)
{
    return (param->dtype == KR_DTYPE_BF16 ? kr_bf16_from_float((float)x) : kr_f16_from_float((float)x)) == bits;
}

static bool check_value(const loading *l, const kept *tensor, double x, int64_t i, uint16_t bits)
{
    const bool has_sign = tensor->values == ANY_FINITE || tensor->values == ROUNDS_TO_PARAMETER;
    return kr_require(l->ctx, isfinite(x) && (has_sign || x >= 0), KR_ERR_FORMAT,
                      "tensor '%s' holds %g as element %lld, but must be finite%s", tensor->name, x, (long long)i,
                      has_sign ? "" : " and not negative") &&
           kr_require(l->ctx, tensor->values != A_COUNT || x <= most_count, KR_ERR_FORMAT,
                      "tensor '%s' holds %g as element %lld, too many steps", tensor->name, x, (long long)i) &&
           kr_require(l->ctx, tensor->values != ROUNDS_TO_PARAMETER || rounds_to(x, tensor->param, bits), KR_ERR_FORMAT,
                      "tensor '%s' holds %g as element %lld, which does not round to the parameter's value; load the "
                      "weights that were saved with it first",
                      tensor->name, x, (long long)i);
}

static bool check_values(const loading *l, const kept *tensor, const kr_tensor_file_item *item)
{
    enum { PIECE = 2048 };
    uint16_t bits[PIECE] = { 0 }; /* of a 16-bit parameter */
    for (int64_t from = 0; from < item->count; from += PIECE) {
        const int64_t n = item->count - from < PIECE ? item->count - from : PIECE;
        if (tensor->values == ROUNDS_TO_PARAMETER &&
            !kr_fetch(l->ctx, bits, tensor->param->data + 2 * from, 2 * (size_t)n))
            return false;
        for (int64_t i = 0; i < n; i++)
            if (!check_value(l, tensor, element(item, from + i), from + i, bits[i])) return false;
    }
    return true;
}

static bool check_tensor(void *user, const kept *tensor)
{
    loading *l = user;
    const kr_tensor_file_item *item = kr_tensor_file_find(l->file, tensor->name);
    l->count++;
    return kr_require(l->ctx, item != NULL, KR_ERR_FORMAT, "tensor '%s' is missing", tensor->name) &&
           kr_require(l->ctx, item->is_native && item->dtype == tensor->dtype, KR_ERR_FORMAT,
                      "tensor '%s' is of the type %s, but must be %s", tensor->name, item->type,
                      kr_dtype_name(tensor->dtype)) &&
           kr_require(l->ctx, kr_shape_equal(&item->shape, &tensor->shape), KR_ERR_FORMAT,
                      "tensor '%s' is %s, but must be %s", tensor->name, KR_TEXT_OF_SHAPE(&item->shape),
                      KR_TEXT_OF_SHAPE(&tensor->shape)) &&
           check_values(l, tensor, item);
}

static bool is_wanted(void *user, const kept *tensor)
{
    loading *l = user;
    l->is_known = l->is_known || strcmp(tensor->name, l->wanted) == 0;
    return !l->is_known;
}

/* All tensors of the state were found: are there unknown ones? */
static bool check_others(loading *l)
{
    int64_t count = 0;
    for (int64_t i = 0; i < kr_tensor_file_count(l->file); i++)
        count += strncmp(kr_tensor_file_at(l->file, i)->name, prefix, strlen(prefix)) == 0;
    for (int64_t i = 0; count != l->count && i < kr_tensor_file_count(l->file); i++) {
        l->wanted = kr_tensor_file_at(l->file, i)->name;
        l->is_known = strncmp(l->wanted, prefix, strlen(prefix)) != 0;
        if (!l->is_known) visit_all(l->opt, is_wanted, l);
        if (!kr_require(l->ctx, l->is_known, KR_ERR_FORMAT, "tensor '%s' does not belong to this optimizer",
                        QUOTED(l->wanted)))
            return false;
    }
    return true;
}

static bool check_text(const loading *l, const char *key, const char *want, const char *fallback)
{
    const char *got = kr_tensor_file_metadata(l->file, key);
    return kr_require(l->ctx, got && strcmp(got, want) == 0, KR_ERR_FORMAT,
                      "metadata '%s' is '%s', but must be '%s': %s", key, got ? QUOTED(got) : "", want, fallback);
}

static bool take(void *user, const kept *tensor)
{
    const loading *l = user;
    const kr_tensor_file_item *item = kr_tensor_file_find(l->file, tensor->name);
    return kr_tensor_file_read(l->file, item, tensor->dtype, tensor->data, item->count) == KR_OK;
}

kr_status kr_optimizer_restore(kr_optimizer *opt, const kr_tensor_file *file)
{
    if (!opt || !file) return KR_ERR_ARG;
    if (!kr_optimizer_ready(opt)) return opt->ctx->status;
    loading l = { .opt = opt, .ctx = opt->ctx, .file = file };
    const bool loaded =
        check_ema_is_out(opt) && check_text(&l, version_key, version, "the file has no optimizer, or a newer one") &&
        check_text(&l, kind_key, kr_optimizer_kind_name(opt->options.kind), "the file has another kind of optimizer") &&
        visit_all(opt, check_tensor, &l) && check_others(&l) &&
        check_text(&l, params_key, digest_of_params(opt).text, "it was saved for other parameters") &&
        visit_all(opt, take, &l);
    if (!loaded) kr_blame(opt->ctx, "optimizer.restore");
    return opt->ctx->status;
}

/* ---- reading pieces ---- */

/* A tensor of a file: elements [first, first + item->count) of what is kept of a row. */
typedef struct stretch {
    int64_t row, first;
    int kind;
    const kr_tensor_file_item *item;
} stretch;

typedef struct stretches {
    kr_optimizer *opt;
    loading loading;
    stretch *all; /* [count], in order */
    int64_t count, capacity;
} stretches;

/* The row of a name; -1: none. */
static int64_t find_row(const kr_optimizer *opt, const char *name, size_t length)
{
    for (int64_t i = 0; i < opt->count; i++) {
        const char *own = opt->slots[i].row->name;
        if (strlen(own) == length && strncmp(own, name, length) == 0) return i;
    }
    return -1;
}

static bool find_segment(const kr_param_row *row, const char *name, int64_t *first)
{
    *first = 0;
    for (int i = 0; i < row->n_segments; i++) {
        if (strcmp(row->segments[i].name, name) == 0) return true;
        *first += row->segments[i].rows * kr_dim_of(row->tensor, 1);
    }
    return false;
}

/* "m.NAME", "m.NAME:SEGMENT", "m.NAME@FIRST" */
static bool parse_name(const kr_optimizer *opt, const char *name, stretch *s)
{
    kept_of_piece kinds[KINDS];
    list_kinds(&(kr_optimizer_piece){ 0 }, kinds);
    const size_t length = strcspn(name, ".");
    for (s->kind = 0; s->kind < KINDS; s->kind++)
        if (strlen(kinds[s->kind].what) == length && strncmp(kinds[s->kind].what, name, length) == 0) break;
    if (s->kind == KINDS || name[length] != '.') return false;
    name += length + 1;
    s->first = 0;
    if ((s->row = find_row(opt, name, strlen(name))) >= 0) return true;
    const char *at = strrchr(name, '@'), *colon = strrchr(name, ':');
    if (at && at[1] >= '0' && at[1] <= '9' && strlen(at) <= 18) {
        char *end;
        s->first = strtoll(at + 1, &end, 10);
        return *end == '\0' && (s->row = find_row(opt, name, (size_t)(at - name))) >= 0;
    }
    return colon && (s->row = find_row(opt, name, (size_t)(colon - name))) >= 0 &&
           find_segment(opt->slots[s->row].row, colon + 1, &s->first);
}

static bool add_stretch(stretches *l, const kr_tensor_file_item *item)
{
    const kr_optimizer *opt = l->opt;
    stretch s = { .item = item };
    const char *name = item->name + strlen(prefix);
    if (strcmp(name, "step") == 0 || strcmp(name, "steps") == 0) return true;
    if (!kr_require(opt->ctx, parse_name(opt, name, &s), KR_ERR_FORMAT, "tensor '%s' does not belong to this optimizer",
                    QUOTED(item->name)))
        return false;
    const kr_optimizer_slot *slot = &opt->slots[s.row];
    l->all[l->count++] = s;
    return kr_require(opt->ctx, item->is_native && item->dtype == slot->dtype, KR_ERR_FORMAT,
                      "tensor '%s' is of the type %s, but must be %s", QUOTED(item->name), item->type,
                      kr_dtype_name(slot->dtype)) &&
           kr_require(opt->ctx, item->count <= kr_slot_elements(slot) - s.first, KR_ERR_FORMAT,
                      "tensor '%s' has %lld elements, but %s has %lld", QUOTED(item->name), (long long)item->count,
                      slot->row->name, (long long)kr_slot_elements(slot));
}

static int by_place(const void *a, const void *b)
{
    const stretch *x = a, *y = b;
    if (x->row != y->row) return x->row < y->row ? -1 : 1;
    if (x->kind != y->kind) return x->kind < y->kind ? -1 : 1;
    return (x->first > y->first) - (x->first < y->first);
}

static bool list_stretches(stretches *l, int n, const kr_tensor_file *const *files)
{
    for (int f = 0; f < n; f++) l->capacity += kr_tensor_file_count(files[f]);
    l->all = kr_memory_alloc(&l->opt->ctx->memory, (size_t)(l->capacity + 1) * sizeof *l->all);
    if (!l->all)
        return kr_fail(l->opt->ctx, KR_ERR_NOMEM, "no memory for a list of %lld tensors", (long long)l->capacity);
    for (int f = 0; f < n; f++)
        for (int64_t i = 0; i < kr_tensor_file_count(files[f]); i++) {
            const kr_tensor_file_item *item = kr_tensor_file_at(files[f], i);
            if (strncmp(item->name, prefix, strlen(prefix)) == 0 && !add_stretch(l, item)) return false;
        }
    qsort(l->all, (size_t)l->count, sizeof *l->all, by_place);
    return true;
}

/* The first stretch of a row and kind; `count` if there is none. */
static int64_t first_stretch(const stretches *l, int64_t row, int kind)
{
    int64_t low = 0, high = l->count;
    const stretch key = { .row = row, .kind = kind, .first = -1 };
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (by_place(&l->all[middle], &key) < 0) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* Elements [from, from + n) of a stretch's tensor: checked, or copied to what a piece keeps. */
static bool use_elements(stretches *l, const stretch *s, int64_t from, int64_t n, rule values, void *to)
{
    enum { PART = 2048 };
    const kr_ctx *ctx = l->opt->ctx;
    const kr_optimizer_slot *slot = &l->opt->slots[s->row];
    const kr_tensor *w = slot->row->tensor;
    kept tensor = { .values = values, .param = w };
    uint16_t bits[PART] = { 0 };
    if (to)
        return kr_store(l->opt->ctx, to, (const char *)s->item->data + kr_dtype_offset(slot->dtype, from),
                        kr_dtype_span(slot->dtype, n));
    snprintf(tensor.name, sizeof tensor.name, "%.*s", NAME_BYTES - 1, QUOTED(s->item->name));
    for (int64_t i = 0; i < n; i++) {
        if (i % PART == 0 && values == ROUNDS_TO_PARAMETER &&
            !kr_fetch(l->opt->ctx, bits, w->data + 2 * (s->first + from + i),
                      2 * (size_t)(n - i < PART ? n - i : PART)))
            return false;
        if (!check_value(&l->loading, &tensor, element(s->item, from + i), from + i, bits[i % PART])) return false;
    }
    return !kr_ctx_failed(ctx);
}

/* What is kept of a piece, out of all stretches that have elements of it. */
static bool use_piece(stretches *l, int64_t row, const kr_optimizer_piece *piece, int kind, const kept_of_piece *wanted,
                      bool takes)
{
    const kr_optimizer_slot *slot = &l->opt->slots[row];
    const int64_t end = piece->first + piece->count;
    int64_t at = piece->first;
    for (int64_t i = first_stretch(l, row, kind); at < end && i < l->count; i++) {
        const stretch *s = &l->all[i];
        if (s->row != row || s->kind != kind || s->first > at) break;
        const int64_t last = s->first + s->item->count < end ? s->first + s->item->count : end;
        if (last <= at) continue;
        void *to = takes ? kr_kept_at(wanted->data, slot->dtype, at - piece->first) : NULL;
        if (!use_elements(l, s, at - s->first, last - at, wanted->values, to)) return false;
        at = last;
    }
    return kr_require(l->opt->ctx, at == end, KR_ERR_FORMAT,
                      "elements %lld to %lld of '%s%s.%s' are in none of the files", (long long)at, (long long)end - 1,
                      prefix, wanted->what, slot->row->name);
}

static bool use_all(stretches *l, bool takes)
{
    kr_piece_at at = KR_BEFORE_PIECES;
    for (const kr_optimizer_piece *piece; (piece = kr_optimizer_next_piece(l->opt, &at));) {
        kept_of_piece kinds[KINDS];
        list_kinds(piece, kinds);
        for (int k = 0; k < KINDS; k++)
            if (kinds[k].data && !use_piece(l, at.slot, piece, k, &kinds[k], takes)) return false;
    }
    return visit_steps(l->opt, takes ? take : check_tensor, &l->loading);
}

bool kr_optimizer_restore_pieces(kr_optimizer *opt, int n, const kr_tensor_file *const *files, bool takes)
{
    stretches l = { .opt = opt, .loading = { .opt = opt, .ctx = opt->ctx, .file = files[0] } };
    const bool is_done =
        check_ema_is_out(opt) &&
        check_text(&l.loading, version_key, version, "the file has no optimizer, or a newer one") &&
        check_text(&l.loading, kind_key, kr_optimizer_kind_name(opt->options.kind),
                   "the file has another kind of optimizer") &&
        check_text(&l.loading, params_key, digest_of_params(opt).text, "it was saved for other parameters") &&
        list_stretches(&l, n, files) && use_all(&l, takes);
    if (l.all) kr_memory_free(&opt->ctx->memory, l.all, (size_t)(l.capacity + 1) * sizeof *l.all);
    return is_done || kr_blame(opt->ctx, "optimizer.restore");
}
