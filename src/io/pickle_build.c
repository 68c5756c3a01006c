/* pickle_build.c - the objects that a program may create: dictionaries, storages, tensors.
 *
 *   collections.OrderedDict()
 *   torch._utils._rebuild_tensor_v2(storage, offset, sizes, strides, requires_grad, hooks[, metadata])
 *   torch._utils._rebuild_parameter(tensor, requires_grad, hooks)
 *   storage: persistent id ('storage', torch.FloatStorage, key, location, count)
 */
#include "io/pickle_value.h"
#include "io/quote.h"
#include "tensor/tensor_impl.h"

#include <string.h>

#define FAIL(m, ...) kr_fail((m)->ctx, KR_ERR_FORMAT, __VA_ARGS__)

const char *kr_pickle_kind_name(value_kind kind)
{
    static const char *const names[] = { "nothing",   "None",    "a bool",       "an integer", "a float",
                                         "a text",    "a tuple", "a dictionary", "a function", "a storage's type",
                                         "a storage", "a tensor" };
    return names[kind];
}

/* ---- names ---- */

static const kr_element_type types[] = {
    { "DoubleStorage", 8, true, true, true, KR_DTYPE_F64 }, { "FloatStorage", 4, true, true, true, KR_DTYPE_F32 },
    { "HalfStorage", 2, true, true, true, KR_DTYPE_F16 },   { "BFloat16Storage", 2, true, true, true, KR_DTYPE_BF16 },
    { "LongStorage", 8, true, true, true, KR_DTYPE_I64 },   { "IntStorage", 4, true, true, true, KR_DTYPE_I32 },
    { "ShortStorage", 2, false, true, true, KR_DTYPE_I32 }, { "CharStorage", 1, false, true, true, KR_DTYPE_I32 },
    { "ByteStorage", 1, false, true, false, KR_DTYPE_I32 }, { "BoolStorage", 1, false, true, false, KR_DTYPE_I32 }
};

const kr_element_type *kr_torch_type_of(kr_dtype dtype)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].is_native && types[i].dtype == dtype) return &types[i];
    return NULL;
}

static bool is_text(const char *text, size_t length, const char *wanted)
{
    return length == strlen(wanted) && memcmp(text, wanted, length) == 0;
}

bool kr_pickle_global(machine *m, const char *module, size_t module_length, const char *name, size_t name_length,
                      value *made)
{
    static const struct {
        const char *module, *name;
        function function;
    } functions[] = { { "collections", "OrderedDict", MAKE_ORDERED_DICT },
                      { "torch._utils", "_rebuild_tensor_v2", REBUILD_TENSOR },
                      { "torch._utils", "_rebuild_parameter", REBUILD_PARAMETER } };
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (is_text(module, module_length, functions[i].module) && is_text(name, name_length, functions[i].name)) {
            *made = (value){ .kind = VALUE_FUNCTION, .function = functions[i].function };
            return true;
        }
    for (size_t i = 0; i < sizeof types / sizeof *types && is_text(module, module_length, "torch"); i++)
        if (is_text(name, name_length, types[i].name)) {
            *made = (value){ .kind = VALUE_STORAGE_TYPE, .storage_type = &types[i] };
            return true;
        }
    return FAIL(m, "it asks for %s.%s, which is neither a tensor nor a dictionary",
                kr_quote_of(module, module_length).text, kr_quote_of(name, name_length).text);
}

/* ---- dictionaries ---- */

bool kr_pickle_dict(machine *m, bool is_ordered, value *made)
{
    dict *d = kr_pickle_alloc(m, sizeof *d);
    if (!d) return false;
    *d = (dict){ .is_ordered = is_ordered };
    *made = (value){ .kind = VALUE_DICT, .dict = d };
    return true;
}

bool kr_pickle_put(machine *m, const value *target, const value *pairs, size_t n)
{
    if (target->kind != VALUE_DICT)
        return FAIL(m, "a key and its value are put into %s, which is not a dictionary",
                    kr_pickle_kind_name(target->kind));
    for (size_t i = 0; i < n; i++)
        if (pairs[2 * i].kind != VALUE_TEXT)
            return FAIL(m, "a dictionary's key is %s, but must be a text", kr_pickle_kind_name(pairs[2 * i].kind));
    if (n == 0) return true;
    dict_block *block = kr_pickle_alloc(m, sizeof *block + 2 * n * sizeof *block->pairs);
    if (!block) return false;
    block->next = NULL;
    block->count = (int64_t)n;
    memcpy(block->pairs, pairs, 2 * n * sizeof *pairs);
    dict *d = target->dict;
    if (d->last) d->last->next = block;
    else d->first = block;
    d->last = block;
    d->count += block->count;
    return true;
}

bool kr_pickle_set_state(machine *m, const value *target, const value *state)
{
    if (target->kind != VALUE_DICT || !target->dict->is_ordered || state->kind != VALUE_DICT)
        return FAIL(m, "attributes are set on %s, but only an OrderedDict may have them",
                    kr_pickle_kind_name(target->kind));
    /* at most one, so that repeated BUILD instructions take constant time */
    const value *name = state->dict->count ? &state->dict->first->pairs[0] : NULL;
    if (!name || (state->dict->count == 1 && is_text(name->text, name->length, "_metadata"))) return true;
    return FAIL(m, "the attribute '%s' is set on an OrderedDict, but _metadata is all that it may have",
                kr_quote_of(name->text, name->length).text);
}

/* ---- tensors ---- */

static bool is_empty_dict(const value *v)
{
    return v->kind == VALUE_DICT && v->dict->count == 0;
}

bool kr_pickle_storage(machine *m, const value *id, value *made)
{
    const value *part = id->items;
    if (id->kind != VALUE_TUPLE || id->length != 5 || part[0].kind != VALUE_TEXT ||
        !is_text(part[0].text, part[0].length, "storage") || part[1].kind != VALUE_STORAGE_TYPE ||
        part[2].kind != VALUE_TEXT || part[3].kind != VALUE_TEXT || part[4].kind != VALUE_INTEGER ||
        part[4].integer < 0)
        return FAIL(m, "a persistent id is not ('storage', type, key, location, count)");
    storage *s = kr_pickle_alloc(m, sizeof *s);
    if (!s) return false;
    *s = (storage){ part[1].storage_type, part[2].text, part[2].length, part[4].integer };
    *made = (value){ .kind = VALUE_STORAGE, .storage = s };
    return true;
}

static bool read_axes(machine *m, const value *sizes, const value *strides, kr_pickle_tensor *t)
{
    if (sizes->length != strides->length || sizes->length > KR_MAX_RANK)
        return FAIL(m, "a tensor has %u sizes and %u strides, but must have as many of both, and at most %d",
                    (unsigned)sizes->length, (unsigned)strides->length, KR_MAX_RANK);
    for (uint32_t a = 0; a < sizes->length; a++) {
        const value *size = &sizes->items[a], *stride = &strides->items[a];
        if (size->kind != VALUE_INTEGER || size->integer < 0 || stride->kind != VALUE_INTEGER || stride->integer < 0)
            return FAIL(m, "size and stride of axis %u of a tensor are not both integers >= 0", (unsigned)a);
        t->shape.dims[t->shape.rank++] = size->integer;
        t->strides[a] = stride->integer;
    }
    t->count = kr_shape_count(&t->shape);
    return kr_require(m->ctx, t->count >= 0, KR_ERR_FORMAT, "a tensor of shape %s has too many elements to address",
                      KR_TEXT_OF_SHAPE(&t->shape));
}

/* The last element is in the storage; so are all others, as no stride is negative. */
static bool is_inside(const kr_pickle_tensor *t)
{
    if (t->offset > t->storage_count) return false;
    if (t->count == 0) return true;
    int64_t left = t->storage_count - t->offset - 1;
    for (int a = 0; a < t->shape.rank; a++) {
        const int64_t steps = t->shape.dims[a] - 1, stride = t->strides[a];
        if (stride > 0 && steps > left / stride) return false;
        left -= steps * stride;
    }
    return left >= 0;
}

static bool rebuild_tensor(machine *m, const value *arguments, value *made)
{
    const value *a = arguments->items;
    const uint32_t n = arguments->length;
    if (n < 6 || n > 7 || a[0].kind != VALUE_STORAGE || a[1].kind != VALUE_INTEGER || a[1].integer < 0 ||
        a[2].kind != VALUE_TUPLE || a[3].kind != VALUE_TUPLE || a[4].kind != VALUE_BOOL || !is_empty_dict(&a[5]))
        return FAIL(m, "a tensor is not made of (storage, offset, sizes, strides, requires_grad, no hooks)");
    if (n == 7 && a[6].kind != VALUE_NONE && !is_empty_dict(&a[6]))
        return FAIL(m, "a tensor has metadata: a view that is conjugated or negated");
    kr_pickle_tensor *t = kr_pickle_alloc(m, sizeof *t);
    if (!t) return false;
    const storage *s = a[0].storage;
    *t = (kr_pickle_tensor){
        .key = s->key, .key_length = s->key_length, .type = s->type, .storage_count = s->count, .offset = a[1].integer
    };
    if (!read_axes(m, &a[2], &a[3], t)) return false;
    if (!is_inside(t))
        return FAIL(m, "a tensor of shape %s at element %lld reaches beyond its storage '%s' of %lld elements",
                    KR_TEXT_OF_SHAPE(&t->shape), (long long)t->offset, kr_quote_of(t->key, t->key_length).text,
                    (long long)t->storage_count);
    *made = (value){ .kind = VALUE_TENSOR, .tensor = t };
    return true;
}

static bool rebuild_parameter(machine *m, const value *arguments, value *made)
{
    const value *a = arguments->items;
    if (arguments->length != 3 || a[0].kind != VALUE_TENSOR || a[1].kind != VALUE_BOOL || !is_empty_dict(&a[2]))
        return FAIL(m, "a parameter is not made of (tensor, requires_grad, no hooks)");
    *made = a[0];
    return true;
}

bool kr_pickle_call(machine *m, const value *called, const value *arguments, value *made)
{
    if (called->kind != VALUE_FUNCTION || arguments->kind != VALUE_TUPLE)
        return FAIL(m, "%s is called with %s", kr_pickle_kind_name(called->kind), kr_pickle_kind_name(arguments->kind));
    switch (called->function) {
    case REBUILD_TENSOR: return rebuild_tensor(m, arguments, made);
    case REBUILD_PARAMETER: return rebuild_parameter(m, arguments, made);
    default:
        return kr_require(m->ctx, arguments->length == 0, KR_ERR_FORMAT,
                          "an OrderedDict is made of %u arguments, not 0", (unsigned)arguments->length) &&
               kr_pickle_dict(m, true, made);
    }
}

/* ---- the result ---- */

static kr_quote quoted(const value *text)
{
    return kr_quote_of(text->text, text->length);
}

static bool is_wrapper(const value *pair)
{
    return pair[1].kind == VALUE_DICT &&
           (is_text(pair[0].text, pair[0].length, "state_dict") || is_text(pair[0].text, pair[0].length, "model"));
}

/* The dictionary of tensors: the root, or the one that the root wraps, with only numbers and texts as other members.
 * NULL after an error. */
static const dict *find_tensors(machine *m, const dict *root)
{
    const value *wrapped = NULL;
    for (const dict_block *block = root->first; block && !wrapped; block = block->next)
        for (int64_t i = 0; i < block->count && !wrapped; i++)
            if (is_wrapper(&block->pairs[2 * i])) wrapped = &block->pairs[2 * i];
    if (!wrapped) return root;
    for (const dict_block *block = root->first; block; block = block->next)
        for (int64_t i = 0; i < block->count; i++) {
            const value *pair = &block->pairs[2 * i];
            if (pair == wrapped || pair[1].kind <= VALUE_TUPLE) continue;
            FAIL(m, "the file has '%s' in addition to '%s', and '%s' is %s; save '%s' alone", quoted(&pair[0]).text,
                 quoted(&wrapped[0]).text, quoted(&pair[0]).text, kr_pickle_kind_name(pair[1].kind),
                 quoted(&wrapped[0]).text);
            return NULL;
        }
    return wrapped[1].dict;
}

static bool take_tensor(machine *m, const value *pair, kr_arena *arena, kr_pickle_tensor *taken)
{
    const value *name = &pair[0];
    if (pair[1].kind != VALUE_TENSOR)
        return FAIL(m, "'%s' is %s, but only tensors are accepted", quoted(name).text,
                    kr_pickle_kind_name(pair[1].kind));
    if (memchr(name->text, 0, name->length))
        return FAIL(m, "the name of tensor '%s' holds a zero byte", quoted(name).text);
    char *copy = kr_arena_alloc(arena, (size_t)name->length + 1);
    if (!copy) return kr_fail(m->ctx, KR_ERR_NOMEM, "no memory for the name of tensor '%s'", quoted(name).text);
    memcpy(copy, name->text, name->length);
    copy[name->length] = '\0';
    *taken = *pair[1].tensor;
    taken->name = copy;
    return true;
}

bool kr_pickle_finish(machine *m, const value *root, kr_arena *arena, kr_pickle *result)
{
    if (root->kind != VALUE_DICT)
        return FAIL(m, "the file holds %s, but must hold a dictionary of tensors", kr_pickle_kind_name(root->kind));
    const dict *tensors = find_tensors(m, root->dict);
    if (!tensors) return false;
    result->count = 0;
    result->tensors = kr_arena_alloc(arena, (size_t)tensors->count * sizeof *result->tensors);
    if (!result->tensors) return kr_fail(m->ctx, KR_ERR_NOMEM, "no memory for %lld tensors", (long long)tensors->count);
    for (const dict_block *block = tensors->first; block; block = block->next)
        for (int64_t i = 0; i < block->count; i++)
            if (!take_tensor(m, &block->pairs[2 * i], arena, &result->tensors[result->count++])) return false;
    return true;
}
