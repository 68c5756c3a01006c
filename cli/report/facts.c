/* facts.c - JSON files as pairs of texts. */
#include "cli/report/facts.h"

#include "cli/common/cli_files.h"
#include "cli/commands/cmd_report.h"

#include <krait/experimental/json.h>
#include <krait/model.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_FACTS = 512, MOST_BYTES = 1 << 20, KEY = 160, VALUE = 400 };

static char *copy_of(const char *text)
{
    char *copy = malloc(strlen(text) + 1);
    return copy ? strcpy(copy, text) : NULL;
}

static void add(facts *f, const char *key, const char *value)
{
    if (f->count == MOST_FACTS || !f->fact) {
        f->more++;
        return;
    }
    fact pair = { copy_of(key), copy_of(value) };
    if (pair.key && pair.value) {
        f->fact[f->count++] = pair;
        return;
    }
    free(pair.key);
    free(pair.value);
    f->more++;
}

/* A value that is not an object, in words: a list's values with commas between them. Returns its length. */
static size_t value_text(const kr_json *value, char *text, size_t bytes)
{
    size_t n = 0;
    text[0] = 0;
    switch (kr_json_kind_of(value)) {
    case KR_JSON_NULL: snprintf(text, bytes, "-"); break;
    case KR_JSON_BOOL: snprintf(text, bytes, "%s", kr_json_bool(value, false) ? "yes" : "no"); break;
    case KR_JSON_STRING: snprintf(text, bytes, "%s", kr_json_text(value)); break;
    case KR_JSON_OBJECT: snprintf(text, bytes, "{...}"); break;
    case KR_JSON_NUMBER:
        if (kr_json_is_integer(value)) snprintf(text, bytes, "%lld", (long long)kr_json_integer(value, 0));
        else snprintf(text, bytes, "%.9g", kr_json_number(value, 0));
        break;
    case KR_JSON_ARRAY:
        for (const kr_json *v = kr_json_first(value); v && n + 8 < bytes; v = kr_json_next(v)) {
            if (n) n += (size_t)snprintf(text + n, bytes - n, ", ");
            n += value_text(v, text + n, bytes - n);
        }
        if (!n) snprintf(text, bytes, "none");
        break;
    }
    return strlen(text);
}

static void add_members(facts *f, const kr_json *object, const char *prefix)
{
    char key[KEY], value[VALUE];
    for (const kr_json *v = kr_json_first(object); v; v = kr_json_next(v)) {
        snprintf(key, sizeof key, "%s%s%s", prefix, *prefix ? "." : "", kr_json_key(v));
        if (kr_json_kind_of(v) == KR_JSON_OBJECT) {
            add_members(f, v, key);
            continue;
        }
        value_text(v, value, sizeof value);
        add(f, key, value);
    }
}

void facts_read(facts *f, kr_ctx *ctx, const char *folder, const char *name)
{
    *f = (facts){ 0 };
    char path[CLI_PATH_BYTES];
    size_t bytes;
    if (!cli_join(path, folder, name) || !cli_exists(path)) return;
    char *text = cli_read_file(path, MOST_BYTES, &bytes);
    if (!text) {
        snprintf(f->complaint, sizeof f->complaint, "%s cannot be read", name);
        return;
    }
    f->fact = calloc(MOST_FACTS, sizeof *f->fact);
    kr_json *root = kr_json_parse(ctx, text, bytes, NULL);
    if (!root) snprintf(f->complaint, sizeof f->complaint, "%s: %.200s", name, kr_ctx_message(ctx));
    else if (kr_json_kind_of(root) != KR_JSON_OBJECT)
        snprintf(f->complaint, sizeof f->complaint, "%s: not a JSON object", name);
    else add_members(f, root, "");
    kr_json_destroy(root);
    kr_ctx_clear(ctx);
    free(text);
}

const char *facts_find(const facts *f, const char *key)
{
    for (int i = 0; i < f->count; i++)
        if (!strcmp(f->fact[i].key, key)) return f->fact[i].value;
    return NULL;
}

void facts_free(facts *f)
{
    for (int i = 0; i < f->count; i++) {
        free(f->fact[i].key);
        free(f->fact[i].value);
    }
    free(f->fact);
    *f = (facts){ 0 };
}

const char *facts_model(kr_ctx *ctx, const char *folder, char *text, size_t bytes)
{
    char path[CLI_PATH_BYTES];
    text[0] = 0;
    if (!cli_join(path, folder, "config.json") || !cli_exists(path)) return text;
    static const char *const families[] = {
        [KR_FAMILY_MAMBA1] = "Mamba-1", [KR_FAMILY_MAMBA2] = "Mamba-2", [KR_FAMILY_MAMBA3] = "Mamba-3"
    };
    kr_model_size size = { 0 };
    kr_model_config *config = kr_model_config_load(ctx, path);
    if (config && kr_model_measure(ctx, config, &size) == KR_OK)
        snprintf(text, bytes, "%s, %s parameters",
                 config->family <= KR_FAMILY_MAMBA3 ? families[config->family] : kr_family_name(config->family),
                 cli_count_text((double)size.parameters).text);
    kr_model_config_destroy(config);
    kr_ctx_clear(ctx);
    return text;
}
