/* model_load.c - loads a model from its directory: config.json, generation_config.json, weights.
 *
 * The config declares a table of parameters without memory; all tensors of the files are checked against it before any
 * memory is allocated for them.
 */
#include "model/model_impl.h"

#include "device/device.h"
#include "io/file.h"
#include "io/quote.h"
#include "io/tensor_file_impl.h"
#include "tensor/tensor_impl.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define OP "model.load"
#define QUOTED(s) kr_quote_of((s), strlen(s)).text

typedef struct loading {
    kr_ctx *ctx;
    const char *folder; /* NULL: of two files in memory */
    const char *config_text;
    size_t config_bytes;
    const void *weight_data;
    size_t weight_bytes;
    kr_config_box *box;
    kr_model_values *config; /* the box's */
    kr_tensor_file *weights;
    kr_network *net; /* declared */
    bool is_tied;    /* to an embedding: the files may have a head that is its copy */
} loading;

/* ---- files against the table ---- */

/* The first few of many names. */
typedef struct list {
    char text[420];
    size_t length;
    int64_t count;
} list;

static void add(list *l, const char *format, ...) KR_PRINTF(2, 3);
static void add(list *l, const char *format, ...)
{
    enum { SHOWN = 3 };
    if (l->count++ >= SHOWN) return;
    va_list args;
    va_start(args, format);
    if (l->count > 1 && l->length < sizeof l->text)
        l->length += (size_t)snprintf(l->text + l->length, sizeof l->text - l->length, ", ");
    if (l->length < sizeof l->text)
        l->length += (size_t)vsnprintf(l->text + l->length, sizeof l->text - l->length, format, args);
    va_end(args);
}

static const char *more(const list *l)
{
    return l->count > 3 ? ", ..." : "";
}

/* The tensor of a parameter; NULL: none. Like Hugging Face's loader, accepts the official name too. */
static const kr_tensor_file_item *item_of(const loading *l, const char *name)
{
    const kr_tensor_file_item *item = kr_tensor_file_find(l->weights, kr_layout_parameter(l->config->layout, name));
    return item ? item : kr_tensor_file_find(l->weights, name);
}

static const kr_tensor_file_item *copied_head(const loading *l)
{
    return l->is_tied ? kr_tensor_file_find(l->weights, kr_head_name) : NULL;
}

/* Is a tensor of the files a parameter's? */
static bool is_known(const loading *l, const kr_tensor_file_item *item)
{
    const kr_params *params = kr_network_params(l->net);
    if (item == copied_head(l)) return true;
    for (int64_t i = 0; i < kr_params_count(params); i++)
        if (item_of(l, kr_params_at(params, i)->name) == item) return true;
    return false;
}

static bool check_names(loading *l)
{
    const kr_params *params = kr_network_params(l->net);
    list missing = { .count = 0 }, strange = { .count = 0 };
    for (int64_t i = 0; i < kr_params_count(params); i++) {
        const char *name = kr_params_at(params, i)->name;
        if (!item_of(l, name)) add(&missing, "'%s'", kr_layout_parameter(l->config->layout, name));
    }
    const int64_t known = kr_params_count(params) - missing.count + (copied_head(l) != NULL);
    const int64_t nstrange = kr_tensor_file_count(l->weights) - known;
    for (int64_t i = 0; strange.count < nstrange && strange.count <= 3; i++) {
        const kr_tensor_file_item *item = kr_tensor_file_at(l->weights, i);
        if (!is_known(l, item)) add(&strange, "'%s'", QUOTED(item->name));
    }
    if (!missing.count && !nstrange) return true;
    const bool needs_head = kr_params_find(params, kr_head_name) && !kr_tensor_file_find(l->weights, kr_head_name);
    char absent[520] = "", present[520] = "";
    if (missing.count)
        snprintf(absent, sizeof absent, "%lld missing: %s%s%s", (long long)missing.count, missing.text, more(&missing),
                 needs_head ? " (the embeddings are not tied, so there must be a head)" : "");
    if (nstrange)
        snprintf(present, sizeof present, "%lld unexpected: %s%s", (long long)nstrange, strange.text,
                 nstrange > 3 ? ", ..." : "");
    return kr_fail(l->ctx, KR_ERR_FORMAT, "the tensors do not match the config: %s%s%s", absent,
                   missing.count && nstrange ? "; " : "", present);
}

static bool is_float(const kr_tensor_file_item *item)
{
    return item->is_readable && kr_dtype_is_float(item->dtype);
}

static void check_item(const kr_tensor_file_item *item, const kr_shape *shape, list *shapes, list *types)
{
    if (!is_float(item)) add(types, "'%s' is %s", QUOTED(item->name), item->type);
    if (!kr_shape_equal(&item->shape, shape))
        add(shapes, "'%s' is %s and must be %s", QUOTED(item->name), KR_TEXT_OF_SHAPE(&item->shape),
            KR_TEXT_OF_SHAPE(shape));
}

static bool check_items(loading *l)
{
    const kr_params *params = kr_network_params(l->net);
    list shapes = { .count = 0 }, types = { .count = 0 };
    for (int64_t i = 0; i < kr_params_count(params); i++) {
        const kr_param_row *row = kr_params_at(params, i);
        const kr_shape shape = kr_tensor_shape(row->tensor);
        check_item(item_of(l, row->name), &shape, &shapes, &types);
        if (copied_head(l) && strcmp(row->name, kr_embedding_name) == 0)
            check_item(copied_head(l), &shape, &shapes, &types);
    }
    return kr_require(l->ctx, shapes.count == 0, KR_ERR_SHAPE, "%lld tensor(s) of another shape: %s%s",
                      (long long)shapes.count, shapes.text, more(&shapes)) &&
           kr_require(l->ctx, types.count == 0, KR_ERR_DTYPE,
                      "%lld tensor(s) of a type that parameters do not have (F64, F32, BF16, F16): %s%s",
                      (long long)types.count, types.text, more(&types));
}

/* A config may request any number of layers; the table is only created if the files have enough tensors. */
static bool has_tensors_for(loading *l)
{
    const int64_t nlayers = l->config->layers.n_layers, count = kr_tensor_file_count(l->weights);
    return kr_require(l->ctx, nlayers <= count, KR_ERR_FORMAT,
                      "the config has %lld layers, but there are %lld tensors in all", (long long)nlayers,
                      (long long)count);
}

static bool declare(loading *l)
{
    if (!(l->net = kr_model_declare(l->ctx, l->config, KR_DTYPE_BF16))) return false;
    l->is_tied = l->net->is_vocab && l->config->network.tie_embeddings;
    return true;
}

static bool match(loading *l)
{
    return has_tensors_for(l) && declare(l) && check_names(l) && check_items(l);
}

/* ---- types ---- */

/* The narrowest type that holds the values of both. */
static kr_dtype joined(kr_dtype a, kr_dtype b)
{
    if (a == b) return a;
    return a == KR_DTYPE_F64 || b == KR_DTYPE_F64 ? KR_DTYPE_F64 : KR_DTYPE_F32;
}

/* Of the matrices: those that a 16-bit network stores with 16 bits. */
static kr_dtype stored_dtype(const loading *l)
{
    const kr_params *params = kr_network_params(l->net);
    kr_dtype dtype = KR_DTYPE_F32;
    bool has_any = false, has_f64 = false;
    for (int64_t i = 0; i < kr_params_count(params); i++) {
        const kr_param_row *row = kr_params_at(params, i);
        const kr_dtype given = item_of(l, row->name)->dtype;
        has_f64 |= given == KR_DTYPE_F64;
        if (kr_tensor_dtype(row->tensor) != KR_DTYPE_BF16) continue;
        dtype = has_any ? joined(dtype, given) : given;
        has_any = true;
    }
    return has_f64 ? KR_DTYPE_F64 : dtype;
}

/* ---- values ---- */

static bool refuse_large(loading *l, const kr_tensor_file_item *item, kr_dtype dtype, int64_t n)
{
    const size_t bytes = (size_t)item->count * sizeof(double);
    double *values = kr_memory_alloc(&l->ctx->memory, bytes);
    const bool has_values = values && kr_tensor_file_read(l->weights, item, KR_DTYPE_F64, values, item->count) == KR_OK;
    kr_refuse_large(l->ctx, "load", QUOTED(item->name), dtype, item->dtype, n, has_values ? values : NULL, item->count);
    if (values) kr_memory_free(&l->ctx->memory, values, bytes);
    return false;
}

static bool read_item(loading *l, const kr_tensor_file_item *item, kr_dtype dtype, void *out)
{
    if (kr_tensor_file_read(l->weights, item, dtype, out, item->count) != KR_OK) return false;
    const int64_t n = kr_dtype_is_shorter(dtype, item->dtype) ? kr_infinities(l->ctx, dtype, out, item->count) : 0;
    return n == 0 || refuse_large(l, item, dtype, n);
}

/* Weights that are used where they lie. Their maps stay with the files until all is loaded. */
static void place_values(loading *l, kr_params *params)
{
    if (kr_ctx_on_device(l->ctx)) return;
    for (int64_t i = 0; i < kr_params_count(params); i++) {
        const kr_param_row *row = kr_params_at(params, i);
        const kr_tensor_file_item *item = item_of(l, row->name);
        void *data = item->count ? kr_tensor_file_place(l->weights, item, kr_tensor_dtype(row->tensor)) : NULL;
        if (data) kr_params_place(params, i, data);
    }
}

/* Is a placed weight in this file? */
static bool is_used(const loading *l, const kr_params *params, int shard)
{
    for (int64_t i = 0; i < kr_params_count(params); i++) {
        const kr_param_row *row = kr_params_at(params, i);
        const kr_tensor_file_item *item = item_of(l, row->name);
        if (item->shard == shard && kr_tensor_data(row->tensor) == item->data) return true;
    }
    return false;
}

/* Moves the maps of such weights into the model. */
static bool keep_maps(loading *l, kr_params *params)
{
    const int count = kr_tensor_file_info_of(l->weights).shards;
    kr_weights_map *maps = kr_params_add_maps(params, count);
    for (int shard = 0; maps && shard < count; shard++) {
        if (!is_used(l, params, shard)) continue;
        maps[shard].data = kr_tensor_file_take_map(l->weights, shard, &maps[shard].bytes);
        maps[shard].release = kr_file_unmap;
    }
    return maps != NULL;
}

static bool read_values(loading *l, kr_model *model, bool is_as_stored)
{
    const kr_params *params = kr_network_params(model->net);
    for (int64_t i = 0; i < model->count; i++) {
        const kr_param_row *row = kr_params_at(params, i);
        const kr_tensor_file_item *item = item_of(l, row->name);
        if (kr_tensor_data(row->tensor) != item->data &&
            !read_item(l, item, kr_tensor_dtype(row->tensor), kr_tensor_data(row->tensor)))
            return false;
        if (is_as_stored) model->stored[i] = item->dtype;
    }
    return true;
}

/* A head in addition to a tied embedding must be its bit-exact copy, whatever the types; otherwise the config is wrong. */
static bool check_copy(loading *l)
{
    const kr_tensor_file_item *head = copied_head(l), *embedding = head ? item_of(l, kr_embedding_name) : NULL;
    if (!head) return true;
    const kr_dtype dtype = joined(head->dtype, embedding->dtype);
    const size_t bytes = kr_dtype_span(dtype, head->count);
    char *both = kr_memory_alloc(&l->ctx->memory, 2 * bytes);
    if (!both) return kr_fail(l->ctx, KR_ERR_NOMEM, "no memory for two copies of %s", kr_head_name);
    const bool equal = read_item(l, head, dtype, both) && read_item(l, embedding, dtype, both + bytes) &&
                       kr_require(l->ctx, memcmp(both, both + bytes, bytes) == 0, KR_ERR_FORMAT,
                                  "the config says that the embeddings are tied, but '%s' is not equal to '%s'; if the "
                                  "head is separate, set %s to false",
                                  kr_head_name, embedding->name,
                                  l->config->layout == KR_LAYOUT_HF ? "tie_word_embeddings" : "tie_embeddings");
    kr_memory_free(&l->ctx->memory, both, 2 * bytes);
    return equal;
}

/* ---- loading ---- */

static bool take_box(loading *l, kr_config_box *box)
{
    l->box = box;
    l->config = box ? &box->values : NULL;
    return box != NULL;
}

static kr_model *make_model(loading *l, const kr_load_options *options)
{
    const bool is_as_stored = options->dtype == KR_DTYPE_AS_STORED;
    const kr_dtype dtype = is_as_stored ? stored_dtype(l) : options->dtype;
    kr_config_set_dtype(l->config, dtype);
    l->config->layers.grad_horizon = options->grad_horizon;
    l->config->layers.recompute = options->recompute;
    l->config->layers.recompute_budget = options->recompute_budget;
    kr_network *net = check_copy(l) ? kr_model_declare(l->ctx, l->config, dtype) : NULL;
    if (net && !options->no_mmap) place_values(l, net->params);
    kr_model *model = net ? kr_model_of(l->ctx, l->config, net) : NULL;
    if (model && read_values(l, model, is_as_stored) && keep_maps(l, net->params) && kr_wait(l->ctx)) return model;
    kr_model_destroy(model);
    return NULL;
}

/* "model.load: FOLDER", or "model.load_memory"; always false. */
static bool blame(const loading *l)
{
    return l->folder ? kr_blame(l->ctx, OP ": %s", l->folder) : kr_blame(l->ctx, OP "_memory");
}

static bool open_folder(loading *l)
{
    if (!take_box(l, kr_config_load_folder(l->ctx, l->folder)))
        /* system messages name the path; others concern its content */
        return l->ctx->status != KR_ERR_IO && blame(l);
    if ((l->weights = kr_tensor_file_open(l->ctx, l->folder))) return true;
    return l->ctx->status != KR_ERR_IO && kr_blame(l->ctx, OP);
}

static bool open_memory(loading *l)
{
    return (take_box(l, kr_config_read_text(l->ctx, l->config_text, l->config_bytes)) &&
            (l->weights = kr_tensor_file_open_memory(l->ctx, l->weight_data, l->weight_bytes))) ||
           blame(l);
}

static bool check_options(kr_ctx *ctx, const char *op, const kr_load_options *o)
{
    return kr_require(ctx,
                      o->dtype == KR_DTYPE_AS_STORED || (kr_dtype_is_valid(o->dtype) && kr_dtype_is_float(o->dtype)),
                      KR_ERR_DTYPE, "%s: dtype = %s, but must be f32, f64, bf16 or f16", op, kr_dtype_name(o->dtype));
}

static kr_model *load(loading *l, const kr_load_options *options)
{
    kr_model *model = NULL;
    if (l->folder ? open_folder(l) : open_memory(l)) {
        model = match(l) ? make_model(l, options) : NULL;
        if (!model) blame(l);
    }
    kr_network_destroy(l->net);
    kr_tensor_file_close(l->weights);
    kr_config_box_destroy(l->box);
    return model;
}

kr_model *kr_model_load(kr_ctx *ctx, const char *folder, const kr_load_options *options)
{
    kr_load_options own;
    if (kr_ctx_failed(ctx) || !KR_TAKE(ctx, OP, kr_load_options, options, &own) ||
        !kr_require(ctx, folder && *folder, KR_ERR_ARG, OP ": the folder's path is NULL or empty") ||
        !check_options(ctx, OP, &own))
        return NULL;
    return load(&(loading){ .ctx = ctx, .folder = folder }, &own);
}

kr_model *kr_model_load_memory(kr_ctx *ctx, const char *config, size_t config_bytes, const void *weights,
                               size_t weights_bytes, const kr_load_options *options)
{
    kr_load_options own;
    if (kr_ctx_failed(ctx) || !KR_TAKE(ctx, OP "_memory", kr_load_options, options, &own) ||
        !check_options(ctx, OP "_memory", &own))
        return NULL;
    return load(&(loading){ .ctx = ctx,
                            .config_text = config,
                            .config_bytes = config_bytes,
                            .weight_data = weights,
                            .weight_bytes = weights_bytes },
                &own);
}

/* ---- without loading ---- */

typedef struct reporter {
    kr_reason_fn *report;
    void *user;
    int64_t count;
} reporter;

static void report(reporter *t, const char *format, ...) KR_PRINTF(2, 3);
static void report(reporter *t, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    t->count++;
    if (t->report) t->report(t->user, text);
}

static void report_item(reporter *t, const kr_tensor_file_item *item, const kr_shape *shape)
{
    if (!is_float(item)) report(t, "tensor '%s' is %s, but parameters are floats", QUOTED(item->name), item->type);
    if (!kr_shape_equal(&item->shape, shape))
        report(t, "tensor '%s' is %s, but must be %s", QUOTED(item->name), KR_TEXT_OF_SHAPE(&item->shape),
               KR_TEXT_OF_SHAPE(shape));
}

static void report_tensors(const loading *l, reporter *t)
{
    const kr_params *params = kr_network_params(l->net);
    int64_t nstrange = kr_tensor_file_count(l->weights) - (copied_head(l) != NULL);
    for (int64_t i = 0; i < kr_params_count(params); i++) {
        const kr_param_row *row = kr_params_at(params, i);
        const kr_tensor_file_item *item = item_of(l, row->name);
        const kr_shape shape = kr_tensor_shape(row->tensor);
        if (!item) {
            report(t, "tensor '%s' is missing", kr_layout_parameter(l->config->layout, row->name));
            continue;
        }
        nstrange--;
        report_item(t, item, &shape);
        if (copied_head(l) && strcmp(row->name, kr_embedding_name) == 0) report_item(t, copied_head(l), &shape);
    }
    for (int64_t i = 0; nstrange > 0 && i < kr_tensor_file_count(l->weights); i++) {
        const kr_tensor_file_item *item = kr_tensor_file_at(l->weights, i);
        if (is_known(l, item)) continue;
        report(t, "tensor '%s' is not a parameter of the model", QUOTED(item->name));
        nstrange--;
    }
}

/* Converts an error of the context to a reason, except out of memory. */
static void report_error(kr_ctx *ctx, reporter *t)
{
    if (!kr_ctx_failed(ctx) || ctx->status == KR_ERR_NOMEM) return;
    report(t, "%s", kr_ctx_message(ctx));
    kr_ctx_clear(ctx);
}

int64_t kr_model_check(kr_ctx *ctx, const char *folder, kr_reason_fn *reason, void *user)
{
    if (kr_ctx_failed(ctx) ||
        !kr_require(ctx, folder && *folder, KR_ERR_ARG, "model.check: the folder's path is NULL or empty"))
        return -1;
    loading l = { .ctx = ctx, .folder = folder };
    reporter t = { .report = reason, .user = user };
    take_box(&l, kr_config_load_folder(ctx, folder));
    report_error(ctx, &t);
    l.weights = kr_tensor_file_open(ctx, folder);
    report_error(ctx, &t);
    if (l.config && l.weights && has_tensors_for(&l) && declare(&l)) report_tensors(&l, &t);
    report_error(ctx, &t);
    kr_network_destroy(l.net);
    kr_tensor_file_close(l.weights);
    kr_config_box_destroy(l.box);
    return kr_ctx_failed(ctx) ? -1 : t.count;
}
