/* state_file.c - state files: safetensors with a tensor "slot.N.NAME" for each tensor of a cache, the extra tensors of
 * its format, and in the metadata
 *
 *   format        "krait.state" or another slots      how many, decimal
 *   version       "1"                      batch      decimal
 *   family        "mamba2"                 filled     a digit for each slot: 1, or 0 for an initial one
 *   architecture  a hash, 16 hex digits    pathways   the same: kr_mamba3_pathway, 0 in other families
 *   weights       a hash, 16 hex digits    cursors    is_on full_len network stack layers.. (one for each slot), decimal
 *                                          checksum   of all these texts and of the tensors, 16 hex digits
 *
 * The input is untrusted: every text is checked against the network before it is used, and allocation sizes come from
 * the shapes of the network's caches.
 */
#include "model/state_file.h"

#include "base/hash.h"
#include "device/device.h"
#include "io/quote.h"
#include "io/tensor_file_impl.h"
#include "nn/network_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { FORMAT, VERSION, FAMILY, ARCHITECTURE, WEIGHTS, SLOTS, BATCH, FILLED, PATHWAYS, CURSORS, NTEXTS };
static const char *const keys[NTEXTS] = { "format", "version", "family", "architecture", "weights",
                                          "slots",  "batch",   "filled", "pathways",     "cursors" };
static const char checksum_key[] = "checksum";
static const kr_state_format state_format = { .name = "krait.state", .version = "1", .what = "state" };

typedef struct digest {
    char text[17];
} digest;

static digest digest_of(uint64_t hash)
{
    digest d;
    snprintf(d.text, sizeof d.text, "%016" PRIx64, hash);
    return d;
}

typedef struct slot_name {
    char text[48];
} slot_name;

static slot_name name_of(const kr_state *state, int64_t slot, int i)
{
    slot_name name;
    snprintf(name.text, sizeof name.text, "slot.%lld.%s", (long long)slot, kr_slot_kind(state, slot)->cache_names[i]);
    return name;
}

/* ---- fingerprints ---- */

static uint64_t hash_class_tokens(uint64_t hash, const kr_class_token *class_tokens, int count)
{
    hash = kr_hash_word(hash, (uint64_t)count);
    for (int i = 0; i < count; i++)
        hash = kr_hash_word(kr_hash_word(hash, (uint64_t)class_tokens[i].kind), (uint64_t)class_tokens[i].at);
    return hash;
}

/* Of a custom network: family and cache of each slot. */
static uint64_t hash_slots(uint64_t hash, const kr_network *net)
{
    for (int64_t slot = 0; slot < net->nslots; slot++) {
        const kr_block *block = kr_network_slot(net, slot);
        hash = kr_hash_text(hash, block->kind->name);
        for (int i = 0; i < block->kind->ncache; i++) {
            const kr_shape shape = block->kind->cache_shape(block, i, 1);
            for (int k = 0; k < shape.rank; k++) hash = kr_hash_word(hash, (uint64_t)shape.dims[k]);
        }
    }
    return hash;
}

/* Names, types and shapes of the parameters, the weights of each slot, and the class tokens that cursors count. */
static uint64_t architecture_hash(const kr_network *net)
{
    const kr_layers *layers = net->layers;
    uint64_t hash = kr_params_structure_hash(kr_network_params(net));
    if (net->is_custom) return hash_slots(hash, net);
    for (int64_t v = 0; v < layers->nvirtual; v++) hash = kr_hash_word(hash, (uint64_t)layers->real[v]);
    hash = hash_class_tokens(hash, net->config.class_tokens, net->config.n_class_tokens);
    hash = hash_class_tokens(hash, layers->config.latents, layers->config.n_latents);
    for (int64_t i = 0; i < layers->config.n_layers; i++)
        hash = hash_class_tokens(hash, layers->layers[i].latents, layers->layers[i].nlatents);
    return hash;
}

static uint64_t hash_texts(const char *const *texts)
{
    uint64_t hash = KR_HASH_BEGIN;
    for (int i = 0; i < NTEXTS; i++) hash = kr_hash_text(kr_hash_text(hash, keys[i]), texts[i]);
    return hash;
}

/* data are in host memory. */
static uint64_t hash_tensor(uint64_t hash, const char *name, kr_dtype dtype, const kr_shape *shape, const void *data)
{
    hash = kr_hash_word(kr_hash_text(hash, name), (uint64_t)dtype);
    for (int i = 0; i < shape->rank; i++) hash = kr_hash_word(hash, (uint64_t)shape->dims[i]);
    return kr_hash_bytes(hash, data, kr_dtype_span(dtype, kr_shape_count(shape)));
}

/* ---- checks of both directions ---- */

/* x is contiguous. */
static bool check_finite(kr_ctx *ctx, const char *name, const kr_tensor *x)
{
    int64_t first;
    if (!kr_find_not_finite(ctx, x->dtype, x->data, kr_count_of(x), &first)) return false;
    if (first < 0) return true;
    kr_tensor bad = *x;
    bad.rank = 0;
    bad.data += kr_dtype_offset(x->dtype, first);
    char index[KR_SHAPE_TEXT_BYTES];
    return kr_fail(ctx, KR_ERR_NUMERIC, "tensor '%s' %s holds %g at %s", name, KR_TEXT_OF(x), kr_item(&bad),
                   kr_index_text(x, first, index, sizeof index));
}

/* is_float: of a type that caches may have; `type` is its name. */
static bool check_tensor(const kr_network *net, const kr_state *state, int64_t slot, int i, const kr_shape *got,
                         bool is_float, kr_dtype dtype, const char *type)
{
    const kr_shape want = kr_slot_kind(state, slot)->cache_shape(kr_network_slot(net, slot), i, state->batch);
    const kr_dtype own = kr_block_dtype(kr_network_slot(net, slot));
    return kr_require(state->ctx, kr_shape_equal(got, &want), KR_ERR_SHAPE, "tensor '%s' is %s, but must be %s",
                      name_of(state, slot, i).text, KR_TEXT_OF_SHAPE(got), KR_TEXT_OF_SHAPE(&want)) &&
           kr_require(state->ctx, is_float && (dtype == KR_DTYPE_F64) == (own == KR_DTYPE_F64), KR_ERR_DTYPE,
                      "tensor '%s' is of the type %s, which a network of %s does not have",
                      name_of(state, slot, i).text, type, kr_dtype_name(own));
}

/* ---- writing ---- */

typedef struct saving {
    kr_ctx *ctx;
    const kr_state_format *format;
    const kr_state *state;
    const kr_network *net;
    kr_arena arena;
    kr_tensor_writer *writer;
    const char *texts[NTEXTS];
    bool measures; /* the size does not depend on the values: nothing is read */
} saving;

static bool is_of(const kr_state *state, const kr_network *net)
{
    const kr_state_layout layout = kr_network_layout(net);
    return kr_require(state->ctx, net->ctx == state->ctx, KR_ERR_STATE, "the network belongs to another context") &&
           kr_require(state->ctx, kr_state_fits(state, &layout), KR_ERR_ARG,
                      "the state has %lld slots of the family %s, but the network has %lld of %s",
                      (long long)state->nslots, kr_state_family(state), (long long)layout.nslots,
                      kr_state_layout_family(&layout));
}

/* A digit for each slot. */
static const char *digits(saving *s, int (*digit)(const kr_state *state, int64_t slot))
{
    char *text = kr_arena_alloc(&s->arena, (size_t)s->state->nslots + 1);
    if (!text) return NULL;
    for (int64_t i = 0; i < s->state->nslots; i++) text[i] = (char)('0' + digit(s->state, i));
    text[s->state->nslots] = '\0';
    return text;
}

static int digit_of_filled(const kr_state *state, int64_t slot)
{
    return !kr_state_slot_is_initial(state, slot);
}

static int digit_of_pathway(const kr_state *state, int64_t slot)
{
    return state->slots[slot].family == KR_FAMILY_MAMBA3 ? (int)state->slots[slot].mamba3.pathway : 0;
}

static const char *number(saving *s, int64_t n)
{
    enum { BYTES = 24 };
    char *text = kr_arena_alloc(&s->arena, BYTES);
    if (text) snprintf(text, BYTES, "%" PRId64, n);
    return text;
}

static const char *numbers_of_cursors(saving *s)
{
    enum { BYTES = 24 };
    const kr_cursors *c = &s->state->cursors;
    const size_t bytes = ((size_t)s->state->nslots + 4) * BYTES;
    char *text = kr_arena_alloc(&s->arena, bytes);
    if (!text) return NULL;
    size_t at = (size_t)snprintf(text, bytes, "%d %" PRId64 " %" PRId64 " %" PRId64, c->is_on, c->full_len, c->network,
                                 c->stack);
    for (int64_t i = 0; i < s->state->nslots; i++)
        at += (size_t)snprintf(text + at, bytes - at, " %" PRId64, c->layers[i]);
    return text;
}

static const char *text_of_digest(saving *s, uint64_t hash)
{
    const digest d = digest_of(hash);
    char *text = kr_arena_alloc(&s->arena, sizeof d.text);
    return text ? memcpy(text, d.text, sizeof d.text) : NULL;
}

static bool compose_texts(saving *s)
{
    s->texts[FORMAT] = s->format->name;
    s->texts[VERSION] = s->format->version;
    s->texts[FAMILY] = kr_state_family(s->state);
    s->texts[ARCHITECTURE] = text_of_digest(s, architecture_hash(s->net));
    s->texts[WEIGHTS] = text_of_digest(s, s->measures ? 0 : kr_params_values_hash(kr_network_params(s->net)));
    s->texts[SLOTS] = number(s, s->state->nslots);
    s->texts[BATCH] = number(s, s->state->batch);
    s->texts[FILLED] = digits(s, digit_of_filled);
    s->texts[PATHWAYS] = digits(s, digit_of_pathway);
    s->texts[CURSORS] = numbers_of_cursors(s);
    for (int i = 0; i < NTEXTS; i++)
        if (!s->texts[i]) return kr_fail(s->ctx, KR_ERR_NOMEM, "no memory for the header");
    return true;
}

/* The elements of x, contiguous, in host memory: x itself, or a copy in `flat`. */
static const kr_tensor *flattened(saving *s, const kr_tensor *x, kr_tensor *flat)
{
    if (kr_tensor_is_row_major(x) && !kr_on_device(s->ctx, x->data)) return x;
    const kr_shape shape = kr_tensor_shape(x);
    *flat = *x;
    kr_tensor_layout(flat, x->dtype, &shape);
    flat->data = kr_arena_alloc(&s->arena, kr_dtype_span(x->dtype, kr_count_of(x)));
    if (!flat->data) {
        kr_fail(s->ctx, KR_ERR_NOMEM, "no memory to write a tensor %s", KR_TEXT_OF(x));
        return NULL;
    }
    return kr_tensor_read(x, x->dtype, flat->data, kr_count_of(x)) == KR_OK ? flat : NULL;
}

static bool add_tensor(saving *s, int64_t slot, int i, uint64_t *hash)
{
    const kr_tensor *x = s->state->slots[slot].tensors[i];
    const slot_name name = name_of(s->state, slot, i);
    if (!kr_require(s->ctx, x != NULL, KR_ERR_ARG, "tensor '%s' is NULL, but others of its slot are not", name.text))
        return false;
    const kr_shape shape = kr_tensor_shape(x);
    kr_tensor flat;
    if (!check_tensor(s->net, s->state, slot, i, &shape, kr_dtype_is_float(x->dtype), x->dtype,
                      kr_dtype_name(x->dtype)))
        return false;
    if (s->measures) return kr_tensor_writer_add(s->writer, name.text, x->dtype, shape, x->data) == KR_OK;
    if (!(x = flattened(s, x, &flat)) || !check_finite(s->ctx, name.text, x)) return false;
    *hash = hash_tensor(*hash, name.text, x->dtype, &shape, x->data);
    return kr_tensor_writer_add(s->writer, name.text, x->dtype, shape, x->data) == KR_OK;
}

static bool add_extra(saving *s, const char *name, const kr_state_extra *extra, uint64_t *hash)
{
    if (!s->measures) *hash = hash_tensor(*hash, name, extra->dtype, &extra->shape, extra->data);
    return kr_tensor_writer_add(s->writer, name, extra->dtype, extra->shape, extra->data) == KR_OK;
}

static bool save(saving *s, const kr_state_extra *extras, const kr_save_target *target)
{
    if (!compose_texts(s)) return false;
    for (int i = 0; i < NTEXTS; i++) kr_tensor_writer_add_metadata(s->writer, keys[i], s->texts[i]);
    uint64_t hash = hash_texts(s->texts);
    for (int64_t slot = 0; slot < s->state->nslots; slot++)
        for (int i = 0; i < kr_slot_kind(s->state, slot)->ncache && !kr_state_slot_is_initial(s->state, slot); i++)
            if (!add_tensor(s, slot, i, &hash)) return false;
    for (int i = 0; i < s->format->nextras; i++)
        if (!add_extra(s, s->format->extras[i], &extras[i], &hash)) return false;
    return kr_tensor_writer_add_metadata(s->writer, checksum_key, digest_of(hash).text) == KR_OK &&
           kr_tensor_writer_save_to(s->writer, target, KR_CONTAINER_SAFETENSORS) == KR_OK;
}

bool kr_state_file_write(const kr_state_format *format, const kr_state *state, const kr_network *net,
                         const kr_state_extra *extras, const kr_save_target *target)
{
    enum { BLOCK_BYTES = 4096 };
    kr_ctx *ctx = state->ctx;
    saving s = { .ctx = ctx, .format = format, .state = state, .net = net, .measures = kr_save_measures(target) };
    kr_arena_init(&s.arena, &ctx->memory, BLOCK_BYTES);
    const bool saved = kr_require(ctx, net != NULL, KR_ERR_ARG, "the network is NULL") && is_of(state, net) &&
                       (s.writer = kr_tensor_writer_create(ctx)) != NULL && save(&s, extras, target);
    kr_tensor_writer_destroy(s.writer);
    kr_arena_deinit(&s.arena);
    return saved;
}

static kr_status save_state(const kr_state *state, const kr_network *net, const kr_save_target *target)
{
    if (!kr_ctx_failed(state->ctx) && kr_state_is_usable("state.save", state) &&
        !kr_state_file_write(&state_format, state, net, NULL, target))
        kr_blame(state->ctx, "state.save");
    return state->ctx->status;
}

kr_status kr_state_save(const kr_state *state, const kr_network *net, const char *path)
{
    return state ? save_state(state, net, &(kr_save_target){ .path = path }) : KR_ERR_ARG;
}

kr_status kr_state_save_memory(const kr_state *state, const kr_network *net, void *out, size_t bytes, size_t *needed)
{
    kr_save_target target;
    if (!state) return KR_ERR_ARG;
    if (kr_ctx_failed(state->ctx)) return state->ctx->status;
    if (kr_save_to_memory(state->ctx, &target, out, bytes, needed)) return save_state(state, net, &target);
    kr_blame(state->ctx, "state.save");
    return state->ctx->status;
}

/* ---- reading ---- */

typedef struct loading {
    kr_ctx *ctx;
    const kr_state_format *format;
    const kr_network *net;
    const kr_tensor_file *file;
    const char *texts[NTEXTS];
    kr_state *state;
    const kr_tensor_file_item *extras[KR_STATE_EXTRAS_MAX];
} loading;

#define QUOTED(s) kr_quote_of((s), strlen(s)).text

static bool read_texts(loading *l)
{
    for (int i = 0; i < NTEXTS; i++) l->texts[i] = kr_tensor_file_metadata(l->file, keys[i]);
    const char *format = l->texts[FORMAT], *version = l->texts[VERSION];
    if (!kr_require(l->ctx, format && strcmp(format, l->format->name) == 0, KR_ERR_FORMAT,
                    "not a %s file of Krait: metadata 'format' is not '%s'", l->format->what, l->format->name) ||
        !kr_require(l->ctx, version && strcmp(version, l->format->version) == 0, KR_ERR_FORMAT,
                    "the %s has version '%s' of the format, but this library reads version %s", l->format->what,
                    version ? QUOTED(version) : "", l->format->version))
        return false;
    for (int i = 0; i < NTEXTS; i++)
        if (!kr_require(l->ctx, l->texts[i] != NULL, KR_ERR_FORMAT, "metadata '%s' is missing", keys[i])) return false;
    return true;
}

/* An integer in canonical form: no sign but '-', no leading zeros. *text moves past it. */
static bool take_number(const char **text, int64_t *n)
{
    const char *at = *text;
    const bool is_negative = *at == '-';
    at += is_negative;
    if (*at < '0' || *at > '9' || (*at == '0' && (is_negative || (at[1] >= '0' && at[1] <= '9')))) return false;
    int64_t value = 0;
    for (; *at >= '0' && *at <= '9'; at++) {
        if (value > (INT64_MAX - 9) / 10) return false;
        value = 10 * value + (*at - '0');
    }
    *n = is_negative ? -value : value;
    *text = at;
    return true;
}

static bool read_count(loading *l, int key, int64_t *n)
{
    const char *at = l->texts[key];
    return kr_require(l->ctx, take_number(&at, n) && *at == '\0' && *n >= 1 && *n <= KR_CURSOR_MAX, KR_ERR_FORMAT,
                      "metadata '%s' is '%s', but must be a positive integer", keys[key], QUOTED(l->texts[key]));
}

static bool check_network(loading *l)
{
    const kr_state_layout layout = kr_network_layout(l->net);
    const char *family = kr_state_layout_family(&layout);
    static const char other[] = "the state belongs to another architecture";
    int64_t nslots;
    if (!kr_require(l->ctx, strcmp(l->texts[FAMILY], family) == 0, KR_ERR_FORMAT,
                    "%s: its blocks are '%s', those of the network are '%s'", other, QUOTED(l->texts[FAMILY]),
                    family) ||
        !read_count(l, SLOTS, &nslots) ||
        !kr_require(l->ctx, nslots == layout.nslots, KR_ERR_FORMAT,
                    "%s: it has %lld slots, but the network has %lld virtual layers", other, (long long)nslots,
                    (long long)layout.nslots) ||
        !kr_require(
            l->ctx, strcmp(l->texts[ARCHITECTURE], digest_of(architecture_hash(l->net)).text) == 0, KR_ERR_FORMAT,
            "%s: names, types or shapes of the network's parameters, its schedule or its class tokens differ", other))
        return false;
    return kr_require(l->ctx,
                      strcmp(l->texts[WEIGHTS], digest_of(kr_params_values_hash(kr_network_params(l->net))).text) == 0,
                      KR_ERR_FORMAT, "the state was made with other weights of the same architecture");
}

static bool read_cursors(loading *l)
{
    kr_cursors *c = &l->state->cursors;
    const char *at = l->texts[CURSORS];
    for (int64_t i = 0; i < l->state->nslots + 4; i++) {
        int64_t n = 0;
        const bool is_there = (i == 0 || *at++ == ' ') && take_number(&at, &n);
        if (!kr_require(l->ctx, is_there && n >= (i == 1 ? KR_LENGTH_UNKNOWN : 0) && n <= (i == 0 ? 1 : KR_CURSOR_MAX),
                        KR_ERR_FORMAT, "metadata 'cursors': number %lld is missing or out of range", (long long)i))
            return false;
        if (i == 0) c->is_on = n;
        else *(i == 1 ? &c->full_len : i == 2 ? &c->network : i == 3 ? &c->stack : &c->layers[i - 4]) = n;
    }
    return kr_require(l->ctx, *at == '\0', KR_ERR_FORMAT, "metadata 'cursors' has more than %lld numbers",
                      (long long)l->state->nslots + 4);
}

static bool check_digits(loading *l, int key, char most)
{
    const char *text = l->texts[key];
    bool right = strlen(text) == (size_t)l->state->nslots;
    for (; *text; text++) right = right && *text >= '0' && *text <= most;
    return kr_require(l->ctx, right, KR_ERR_FORMAT, "metadata '%s' is not %lld digits from 0 to %c", keys[key],
                      (long long)l->state->nslots, most);
}

static bool is_filled(const loading *l, int64_t slot)
{
    return l->texts[FILLED][slot] == '1';
}

/* The state without its tensors. */
static bool read_frame(loading *l)
{
    int64_t batch;
    if (!read_count(l, BATCH, &batch) || !(l->state = kr_network_state(l->net, batch))) return false;
    bool has_mamba3 = false;
    for (int64_t slot = 0; slot < l->state->nslots; slot++)
        has_mamba3 = has_mamba3 || l->state->slots[slot].family == KR_FAMILY_MAMBA3;
    if (!check_digits(l, FILLED, '1') || !check_digits(l, PATHWAYS, has_mamba3 ? '1' : '0') || !read_cursors(l))
        return false;
    for (int64_t slot = 0; slot < l->state->nslots; slot++) {
        const bool is_double = l->texts[PATHWAYS][slot] == '1';
        kr_cache *cache = &l->state->slots[slot];
        if (cache->family == KR_FAMILY_MAMBA3)
            cache->mamba3.pathway = is_double ? KR_MAMBA3_PATHWAY_DOUBLE : KR_MAMBA3_PATHWAY_SINGLE;
        else if (!kr_require(l->ctx, !is_double, KR_ERR_FORMAT, "metadata '%s': slot %lld is not a mamba3",
                             keys[PATHWAYS], (long long)slot))
            return false;
    }
    return true;
}

/* A tensor of a slot that is filled; NULL: the file has none. */
static const kr_tensor_file_item *item_of(const loading *l, int64_t slot, int i)
{
    return kr_tensor_file_find(l->file, name_of(l->state, slot, i).text);
}

static bool check_item(loading *l, int64_t slot, int i, const kr_tensor_file_item *item)
{
    return check_tensor(l->net, l->state, slot, i, &item->shape, item->is_native && kr_dtype_is_float(item->dtype),
                        item->dtype, item->type);
}

/* Is it the tensor of a slot that is filled, or an extra tensor of the format? */
static bool is_known(const loading *l, const kr_tensor_file_item *item)
{
    const char *at = item->name;
    int64_t slot;
    for (int i = 0; i < l->format->nextras; i++)
        if (strcmp(at, l->format->extras[i]) == 0) return true;
    if (strncmp(at, "slot.", 5) != 0) return false;
    at += 5;
    if (!take_number(&at, &slot) || *at != '.' || slot < 0 || slot >= l->state->nslots || !is_filled(l, slot))
        return false;
    for (int i = 0; i < kr_slot_kind(l->state, slot)->ncache; i++)
        if (strcmp(at + 1, kr_slot_kind(l->state, slot)->cache_names[i]) == 0) return true;
    return false;
}

static bool check_present(loading *l)
{
    for (int64_t slot = 0; slot < l->state->nslots; slot++)
        for (int i = 0; i < kr_slot_kind(l->state, slot)->ncache && is_filled(l, slot); i++) {
            const kr_tensor_file_item *item = item_of(l, slot, i);
            if (item && !check_item(l, slot, i, item)) return false;
        }
    return true;
}

static bool check_complete(loading *l)
{
    for (int64_t slot = 0; slot < l->state->nslots; slot++)
        for (int i = 0; i < kr_slot_kind(l->state, slot)->ncache && is_filled(l, slot); i++)
            if (!kr_require(l->ctx, item_of(l, slot, i) != NULL, KR_ERR_FORMAT, "tensor '%s' is missing",
                            name_of(l->state, slot, i).text))
                return false;
    for (int i = 0; i < l->format->nextras; i++) {
        const char *name = l->format->extras[i];
        if (!kr_require(l->ctx, (l->extras[i] = kr_tensor_file_find(l->file, name)) != NULL, KR_ERR_FORMAT,
                        "tensor '%s' is missing", name) ||
            !kr_require(l->ctx, l->extras[i]->is_native, KR_ERR_DTYPE, "tensor '%s' is of the type %s", name,
                        l->extras[i]->type))
            return false;
    }
    for (int64_t n = 0; n < kr_tensor_file_count(l->file); n++) {
        const kr_tensor_file_item *item = kr_tensor_file_at(l->file, n);
        if (!kr_require(l->ctx, is_known(l, item), KR_ERR_FORMAT,
                        "tensor '%s' is in the file, but no slot of this state has it", QUOTED(item->name)))
            return false;
    }
    return true;
}

static bool check_checksum(loading *l)
{
    uint64_t hash = hash_texts(l->texts);
    for (int64_t slot = 0; slot < l->state->nslots; slot++)
        for (int i = 0; i < kr_slot_kind(l->state, slot)->ncache && is_filled(l, slot); i++) {
            const kr_tensor_file_item *item = item_of(l, slot, i);
            hash = hash_tensor(hash, item->name, item->dtype, &item->shape, item->data);
        }
    for (int i = 0; i < l->format->nextras; i++) {
        const kr_tensor_file_item *item = l->extras[i];
        hash = hash_tensor(hash, item->name, item->dtype, &item->shape, item->data);
    }
    const char *text = kr_tensor_file_metadata(l->file, checksum_key);
    return kr_require(l->ctx, text && strcmp(text, digest_of(hash).text) == 0, KR_ERR_FORMAT,
                      "the checksum does not match: the file was changed or damaged");
}

static bool read_tensors(loading *l)
{
    for (int64_t slot = 0; slot < l->state->nslots; slot++)
        for (int i = 0; i < kr_slot_kind(l->state, slot)->ncache && is_filled(l, slot); i++) {
            const kr_tensor_file_item *item = item_of(l, slot, i);
            const char *name = kr_slot_kind(l->state, slot)->cache_names[i];
            kr_tensor *x = kr_state_tensor(l->ctx, name, item->dtype, item->shape);
            l->state->slots[slot].tensors[i] = x;
            if (!x) return false;
            if (!kr_store(l->ctx, x->data, item->data, item->bytes)) return false;
            if (!check_finite(l->ctx, item->name, x)) return false;
        }
    return true;
}

kr_state *kr_state_file_read(const kr_state_format *format, kr_ctx *ctx, const kr_network *net,
                             const kr_load_source *source, kr_state_take_fn *take, void *user)
{
    kr_tensor_file *file = source->is_memory ? kr_tensor_file_open_memory(ctx, source->data, source->bytes)
                                             : kr_tensor_file_open(ctx, source->path);
    if (!file) return NULL;
    loading l = { .ctx = ctx, .format = format, .net = net, .file = file };
    const bool loaded = read_texts(&l) && check_network(&l) && read_frame(&l) && check_present(&l) &&
                        check_complete(&l) && check_checksum(&l) && read_tensors(&l) &&
                        (!take || take(user, l.state, file, l.extras));
    if (!loaded) {
        if (!source->is_memory) kr_blame(ctx, "%s", source->path);
        kr_state_destroy(l.state);
        l.state = NULL;
    }
    kr_tensor_file_close(file);
    return l.state;
}

static kr_state *load_state(kr_ctx *ctx, const kr_network *net, const kr_load_source *source)
{
    if (kr_ctx_failed(ctx) || !kr_require(ctx, net != NULL, KR_ERR_ARG, "state.load: the network is NULL") ||
        !kr_require(ctx, net->ctx == ctx, KR_ERR_STATE, "state.load: the network belongs to another context"))
        return NULL;
    kr_state *state = kr_state_file_read(&state_format, ctx, net, source, NULL, NULL);
    if (!state) kr_blame(ctx, "state.load");
    return state;
}

kr_state *kr_state_load(kr_ctx *ctx, const kr_network *net, const char *path)
{
    return load_state(ctx, net, &(kr_load_source){ .path = path });
}

kr_state *kr_state_load_memory(kr_ctx *ctx, const kr_network *net, const void *data, size_t bytes)
{
    return load_state(ctx, net, &(kr_load_source){ .is_memory = true, .data = data, .bytes = bytes });
}
