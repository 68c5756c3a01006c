/* config_tokens.c - BOS, EOS and padding ids: keys of config.json and of generation_config.json. */
#include "model/model_config_impl.h"

#include <string.h>

/* ---- one id ---- */

static bool read_token(kr_reading *r, const kr_key *key, const kr_json *value)
{
    int64_t id = -1;
    if (kr_json_kind_of(value) != KR_JSON_NULL) {
        if (!kr_json_is_integer(value) || value->integer < -1)
            return kr_key_refuse(r, key->name, value, "a token id, or null for none");
        id = value->integer;
    }
    memcpy((char *)r->config + key->offset, &id, sizeof id);
    return true;
}

static bool check_token(kr_ctx *ctx, const char *prefix, const kr_key *key, const kr_model_values *config)
{
    int64_t id;
    memcpy(&id, (const char *)config + key->offset, sizeof id);
    return kr_require(ctx, id >= -1, KR_ERR_FORMAT, "config.json: %s%s = %lld, but must be an id, or -1 for none",
                      prefix, key->name, (long long)id);
}

static void write_token(kr_json_writer *w, const kr_key *key, const kr_model_values *config)
{
    int64_t id;
    memcpy(&id, (const char *)config + key->offset, sizeof id);
    if (id >= 0) kr_json_write_integer(w, key->name, id);
}

const kr_key_kind kr_token_key = { sizeof(int64_t), read_token, check_token, write_token, NULL, NULL };

/* ---- any number of ids ---- */

static bool read_eos(kr_reading *r, const kr_key *key, const kr_json *value)
{
    kr_model_values *c = r->config;
    const bool is_list = kr_json_kind_of(value) == KR_JSON_ARRAY;
    if (is_list && kr_json_length(value) > KR_MAX_EOS)
        return kr_fail(r->ctx, KR_ERR_FORMAT, "config.json: %s%s has %lld ids, but at most %d are kept", r->prefix,
                       key->name, (long long)kr_json_length(value), KR_MAX_EOS);
    c->n_eos = 0;
    if (kr_json_kind_of(value) == KR_JSON_NULL) return true;
    for (const kr_json *id = is_list ? kr_json_first(value) : value; id; id = is_list ? kr_json_next(id) : NULL) {
        if (!kr_json_is_integer(id) || id->integer < 0)
            return kr_key_refuse(r, key->name, value, "a token id, an array of such, or null for none");
        c->eos[c->n_eos++] = id->integer;
    }
    return true;
}

static bool check_eos(kr_ctx *ctx, const char *prefix, const kr_key *key, const kr_model_values *config)
{
    if (!kr_require(ctx, config->n_eos >= 0 && config->n_eos <= KR_MAX_EOS, KR_ERR_FORMAT,
                    "config.json: %s%s: n_eos = %d, but must be from 0 to %d", prefix, key->name, config->n_eos,
                    KR_MAX_EOS))
        return false;
    for (int i = 0; i < config->n_eos; i++)
        if (!kr_require(ctx, config->eos[i] >= 0, KR_ERR_FORMAT, "config.json: %s%s: eos[%d] = %lld is not an id",
                        prefix, key->name, i, (long long)config->eos[i]))
            return false;
    return true;
}

static void write_eos(kr_json_writer *w, const kr_key *key, const kr_model_values *config)
{
    if (config->n_eos == 1) kr_json_write_integer(w, key->name, config->eos[0]);
    if (config->n_eos <= 1) return;
    kr_json_write_open(w, key->name, '[');
    for (int i = 0; i < config->n_eos; i++) kr_json_write_integer(w, NULL, config->eos[i]);
    kr_json_write_close(w, ']');
}

static bool same_eos(const kr_model_values *a, const kr_model_values *b)
{
    return a->n_eos == b->n_eos && memcmp(a->eos, b->eos, (size_t)a->n_eos * sizeof *a->eos) == 0;
}

static void copy_eos(kr_model_values *to, const kr_model_values *from)
{
    to->n_eos = from->n_eos;
    memcpy(to->eos, from->eos, sizeof to->eos);
}

const kr_key_kind kr_eos_key = { 0, read_eos, check_eos, write_eos, same_eos, copy_eos };

/* ---- the three keys ---- */

static const kr_key rows[] = { { .name = "bos_token_id", .kind = &kr_token_key, .offset = KR_FIELD(bos) },
                               { .name = "eos_token_id", .kind = &kr_eos_key },
                               { .name = "pad_token_id", .kind = &kr_token_key, .offset = KR_FIELD(pad) } };
const kr_keys kr_token_keys = KR_KEYS(rows);

bool kr_config_has_tokens(const kr_model_values *config)
{
    return config->n_eos > 0 || config->bos >= 0 || config->pad >= 0;
}

/* The file's other keys concern sampling and are ignored. */
bool kr_generation_read(kr_ctx *ctx, kr_model_values *config, const char *text, size_t bytes)
{
    kr_json *root = kr_config_parse(ctx, "generation_config.json", text, bytes);
    kr_reading r = { .ctx = ctx, .config = config, .object = root, .prefix = "" };
    bool done = root != NULL;
    for (size_t i = 0; done && i < kr_token_keys.count; i++) {
        const kr_key *key = &kr_token_keys.rows[i];
        const kr_json *value = kr_json_find(root, key->name);
        done = !value || key->kind->read(&r, key, value);
    }
    if (root && !done) kr_blame(ctx, "generation_config.json");
    kr_json_destroy(root);
    return done;
}

void kr_generation_write(kr_json_writer *w, const kr_model_values *config)
{
    kr_json_write_open(w, NULL, '{');
    for (size_t i = 0; i < kr_token_keys.count; i++)
        kr_token_keys.rows[i].kind->write(w, &kr_token_keys.rows[i], config);
    kr_json_write_close(w, '}');
    kr_json_write_end(w);
}
