/* config_registered.c - ssm_cfg of a registered family: its name as `layer`, and the fields that it describes. */
#include "model/model_config_impl.h"

#include "io/quote.h"

#include <stdio.h>
#include <string.h>

/* ---- reading ---- */

static const kr_config_field *find_field(const kr_registered_kind *r, const kr_json *member)
{
    for (int i = 0; i < r->info.n_fields; i++)
        if (strlen(r->fields[i].name) == member->key_length &&
            memcmp(r->fields[i].name, member->key, member->key_length) == 0)
            return &r->fields[i];
    return NULL;
}

static bool is_idle(const kr_keys *idle, const kr_json *member)
{
    for (size_t i = 0; i < idle->count; i++)
        if (strlen(idle->rows[i].name) == member->key_length &&
            memcmp(idle->rows[i].name, member->key, member->key_length) == 0)
            return true;
    return false;
}

static bool read_text(kr_reading *r, const kr_config_field *f, const kr_json *value, char *at)
{
    const char *text = kr_json_text(value);
    const size_t length = (size_t)kr_json_length(value);
    if (!text || strlen(text) != length) return kr_key_refuse(r, f->name, value, "a string without zero bytes");
    char *copy = kr_arena_alloc(r->arena, length + 1);
    if (!copy) return kr_fail(r->ctx, KR_ERR_NOMEM, "config.json: no memory for ssm_cfg.%s", f->name);
    memcpy(copy, text, length + 1);
    memcpy(at, &copy, sizeof copy);
    return true;
}

static bool read_field(kr_reading *r, const kr_config_field *f, const kr_json *value)
{
    char *at = (char *)&r->config->registered + f->offset;
    switch (f->kind) {
    case KR_FIELD_INTEGER:
        if (!kr_json_is_integer(value)) return kr_key_refuse(r, f->name, value, "a whole number");
        memcpy(at, &value->integer, sizeof value->integer);
        break;
    case KR_FIELD_NUMBER:
        if (kr_json_kind_of(value) != KR_JSON_NUMBER) return kr_key_refuse(r, f->name, value, "a number");
        memcpy(at, &value->number, sizeof value->number);
        break;
    case KR_FIELD_BOOL:
        if (kr_json_kind_of(value) != KR_JSON_BOOL) return kr_key_refuse(r, f->name, value, "true or false");
        memcpy(at, &value->truth, sizeof value->truth);
        break;
    case KR_FIELD_TEXT:
        if (!read_text(r, f, value, at)) return false;
        break;
    }
    return kr_registered_field_check(r->ctx, KR_ERR_FORMAT, "config.json: ssm_cfg.", f, &r->config->registered);
}

bool kr_registered_read(kr_reading *r, const kr_json *ssm, const kr_keys *idle)
{
    const kr_registered_kind *kind = kr_registered_kind_of(r->config->family);
    for (const kr_json *member = kr_json_first(ssm); member; member = kr_json_next(member)) {
        const kr_config_field *f = find_field(kind, member);
        if (!f && is_idle(idle, member)) continue;
        if (!kr_require(r->ctx, f != NULL, KR_ERR_FORMAT,
                        "config.json: the key 'ssm_cfg.%s' is unknown to blocks of %s",
                        kr_quote_of(member->key, member->key_length).text, kind->name) ||
            !read_field(r, f, member))
            return false;
    }
    return true;
}

/* ---- writing ---- */

void kr_registered_write(kr_json_writer *w, const kr_model_values *config)
{
    const kr_registered_kind *kind = kr_registered_kind_of(config->family);
    kr_json_write_string(w, "layer", kind->name);
    for (int i = 0; i < kind->info.n_fields; i++) {
        const kr_config_field *f = &kind->fields[i];
        const char *at = (const char *)&config->registered + f->offset, *text;
        int64_t integer;
        double number;
        bool truth;
        switch (f->kind) {
        case KR_FIELD_INTEGER:
            memcpy(&integer, at, sizeof integer);
            kr_json_write_integer(w, f->name, integer);
            break;
        case KR_FIELD_NUMBER:
            memcpy(&number, at, sizeof number);
            kr_json_write_number(w, f->name, number);
            break;
        case KR_FIELD_BOOL:
            memcpy(&truth, at, sizeof truth);
            kr_json_write_bool(w, f->name, truth);
            break;
        case KR_FIELD_TEXT:
            memcpy(&text, at, sizeof text);
            kr_json_write_string(w, f->name, text);
            break;
        }
    }
}

bool kr_registered_copy_texts(kr_arena *arena, kr_model_values *config)
{
    const kr_registered_kind *kind = kr_registered_kind_of(config->family);
    for (int i = 0; kind && i < kind->info.n_fields; i++) {
        char *at = (char *)&config->registered + kind->fields[i].offset;
        const char *text;
        if (kind->fields[i].kind != KR_FIELD_TEXT) continue;
        memcpy(&text, at, sizeof text);
        char *copy = kr_arena_alloc(arena, text ? strlen(text) + 1 : 1);
        if (!copy) return false;
        memcpy(copy, text ? text : "", text ? strlen(text) + 1 : 1);
        memcpy(at, &copy, sizeof copy);
    }
    return true;
}
