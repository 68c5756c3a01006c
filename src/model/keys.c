/* keys.c - kinds of values in config.json, and tables of keys: reading, checking, writing, comparing. */
#include "model/model_config_impl.h"

#include "io/quote.h"
#include "nn/block_config.h"

#include <assert.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- words ---- */

typedef struct brief {
    char text[KR_QUOTE_BYTES + 8];
} brief;

/* A value, shortened for a message. */
static brief brief_of(const kr_json *value)
{
    brief b;
    switch (kr_json_kind_of(value)) {
    case KR_JSON_NULL: snprintf(b.text, sizeof b.text, "null"); break;
    case KR_JSON_BOOL: snprintf(b.text, sizeof b.text, "%s", value->truth ? "true" : "false"); break;
    case KR_JSON_NUMBER:
        if (value->is_integer) snprintf(b.text, sizeof b.text, "%" PRId64, value->integer);
        else snprintf(b.text, sizeof b.text, "%g", value->number);
        break;
    case KR_JSON_STRING: snprintf(b.text, sizeof b.text, "'%s'", kr_quote_of(value->text, value->length).text); break;
    case KR_JSON_ARRAY: snprintf(b.text, sizeof b.text, "[%s]", value->count ? "..." : ""); break;
    case KR_JSON_OBJECT: snprintf(b.text, sizeof b.text, "{%s}", value->count ? "..." : ""); break;
    }
    return b;
}

bool kr_key_refuse(const kr_reading *r, const char *name, const kr_json *value, const char *rule)
{
    return kr_fail(r->ctx, KR_ERR_FORMAT, "config.json: %s%s = %s, but must be %s", r->prefix, name,
                   brief_of(value).text, rule);
}

bool kr_json_is_word(const kr_json *value, const char *word)
{
    const size_t length = strlen(word);
    return kr_json_text(value) && (size_t)kr_json_length(value) == length && memcmp(value->text, word, length) == 0;
}

/* ---- fields ---- */

static const void *field_of(const kr_key *key, const kr_model_values *config)
{
    return (const char *)config + key->offset;
}

static void set_field(const kr_key *key, kr_model_values *config, const void *value)
{
    memcpy((char *)config + key->offset, value, key->kind->bytes);
}

static int64_t integer_of(const kr_key *key, const kr_model_values *config)
{
    int64_t n;
    memcpy(&n, field_of(key, config), sizeof n);
    return n;
}

static double number_of(const kr_key *key, const kr_model_values *config, int which)
{
    double x;
    memcpy(&x, (const char *)field_of(key, config) + (size_t)which * sizeof x, sizeof x);
    return x;
}

static bool truth_of(const kr_key *key, const kr_model_values *config)
{
    bool is_true;
    memcpy(&is_true, field_of(key, config), sizeof is_true);
    return is_true;
}

/* ---- integers ---- */

static int64_t most_of(const kr_key *key)
{
    return key->most ? key->most : KR_CONFIG_MOST;
}

static bool read_integer(kr_reading *r, const kr_key *key, const kr_json *value)
{
    if (!kr_json_is_integer(value)) return kr_key_refuse(r, key->name, value, "a whole number");
    set_field(key, r->config, &value->integer);
    return true;
}

static bool check_integer(kr_ctx *ctx, const char *prefix, const kr_key *key, const kr_model_values *config)
{
    const int64_t n = integer_of(key, config);
    return kr_require(ctx, n >= key->least && n <= most_of(key), KR_ERR_FORMAT,
                      "config.json: %s%s = %lld, but must be from %lld to %lld", prefix, key->name, (long long)n,
                      (long long)key->least, (long long)most_of(key));
}

static void write_integer(kr_json_writer *w, const kr_key *key, const kr_model_values *config)
{
    kr_json_write_integer(w, key->name, integer_of(key, config));
}

const kr_key_kind kr_integer_key = { sizeof(int64_t), read_integer, check_integer, write_integer, NULL, NULL };

/* A field of 0 is a word in the file, not a number. */
static bool read_but_zero(kr_reading *r, const kr_key *key, const kr_json *value, bool is_zero, const char *rule)
{
    const int64_t zero = 0;
    if (!is_zero && (!kr_json_is_integer(value) || value->integer == 0))
        return kr_key_refuse(r, key->name, value, rule);
    set_field(key, r->config, is_zero ? &zero : &value->integer);
    return true;
}

static bool read_auto(kr_reading *r, const kr_key *key, const kr_json *value)
{
    return read_but_zero(r, key, value, kr_json_is_word(value, "auto"), "a positive integer, or 'auto'");
}

static void write_auto(kr_json_writer *w, const kr_key *key, const kr_model_values *config)
{
    if (integer_of(key, config)) write_integer(w, key, config);
    else kr_json_write_string(w, key->name, "auto");
}

const kr_key_kind kr_auto_key = { sizeof(int64_t), read_auto, check_integer, write_auto, NULL, NULL };

static bool read_optional(kr_reading *r, const kr_key *key, const kr_json *value)
{
    return read_but_zero(r, key, value, kr_json_kind_of(value) == KR_JSON_NULL, "a positive integer, or null");
}

const kr_key_kind kr_optional_key = { sizeof(int64_t), read_optional, check_integer, write_integer, NULL, NULL };

/* ---- numbers ---- */

static bool read_number(kr_reading *r, const kr_key *key, const kr_json *value)
{
    if (kr_json_kind_of(value) != KR_JSON_NUMBER) return kr_key_refuse(r, key->name, value, "a number");
    set_field(key, r->config, &value->number);
    return true;
}

static bool check_number(kr_ctx *ctx, const char *prefix, const kr_key *key, const kr_model_values *config)
{
    const double x = number_of(key, config, 0);
    if (key->least == KR_KEY_ANY)
        return kr_require(ctx, isfinite(x), KR_ERR_FORMAT, "config.json: %s%s = %g, but must be finite", prefix,
                          key->name, x);
    const bool is_above = key->flags & KR_KEY_ABOVE;
    return kr_require(ctx, isfinite(x) && (is_above ? x > (double)key->least : x >= (double)key->least), KR_ERR_FORMAT,
                      "config.json: %s%s = %g, but must be finite and %s %lld", prefix, key->name, x,
                      is_above ? "above" : "at least", (long long)key->least);
}

static void write_number(kr_json_writer *w, const kr_key *key, const kr_model_values *config)
{
    kr_json_write_number(w, key->name, number_of(key, config, 0));
}

const kr_key_kind kr_number_key = { sizeof(double), read_number, check_number, write_number, NULL, NULL };

/* Infinity: the bare word, or as an object or a string; a number out of range also means infinity. */
static bool take_bound(const kr_json *value, double *x)
{
    static const char *const words[] = { "Infinity", "infinity", "inf" };
    if (kr_json_kind_of(value) == KR_JSON_OBJECT && kr_json_length(value) == 1)
        value = kr_json_find(value, "__float__");
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (kr_json_is_word(value, words[i])) {
            *x = INFINITY;
            return true;
        }
    *x = kr_json_number(value, 0);
    if (*x > (double)FLT_MAX) *x = INFINITY;
    return kr_json_kind_of(value) == KR_JSON_NUMBER;
}

static bool read_pair(kr_reading *r, const kr_key *key, const kr_json *value)
{
    double x[2] = { 0, 0 };
    const kr_json *first = kr_json_first(value);
    if (kr_json_kind_of(value) != KR_JSON_ARRAY || kr_json_length(value) != 2 || !take_bound(first, &x[0]) ||
        !take_bound(kr_json_next(first), &x[1]))
        return kr_key_refuse(r, key->name, value, "an array of two numbers");
    set_field(key, r->config, x);
    return true;
}

static bool check_pair(kr_ctx *ctx, const char *prefix, const kr_key *key, const kr_model_values *config)
{
    const double low = number_of(key, config, 0), high = number_of(key, config, 1);
    const bool is_above = key->flags & KR_KEY_ABOVE, may_be_infinite = key->flags & KR_KEY_INFINITE;
    return kr_require(ctx,
                      isfinite(low) && (is_above ? low > (double)key->least : low >= (double)key->least) &&
                          high >= low && (may_be_infinite || isfinite(high)),
                      KR_ERR_FORMAT,
                      "config.json: %s%s = [%g, %g], but must be a range: the first %s %lld, the second %sno less",
                      prefix, key->name, low, high, is_above ? "above" : "at least", (long long)key->least,
                      may_be_infinite ? "" : "finite and ");
}

static void write_pair(kr_json_writer *w, const kr_key *key, const kr_model_values *config)
{
    kr_json_write_open(w, key->name, '[');
    kr_json_write_number(w, NULL, number_of(key, config, 0));
    kr_json_write_number(w, NULL, number_of(key, config, 1));
    kr_json_write_close(w, ']');
}

const kr_key_kind kr_pair_key = { 2 * sizeof(double), read_pair, check_pair, write_pair, NULL, NULL };

/* ---- booleans and words ---- */

static bool is_in_range(kr_ctx *ctx, const char *prefix, const kr_key *key, const kr_model_values *config)
{
    (void)ctx, (void)prefix, (void)key, (void)config;
    return true;
}

static bool read_bool(kr_reading *r, const kr_key *key, const kr_json *value)
{
    if (kr_json_kind_of(value) != KR_JSON_BOOL) return kr_key_refuse(r, key->name, value, "true or false");
    set_field(key, r->config, &value->truth);
    return true;
}

static void write_bool(kr_json_writer *w, const kr_key *key, const kr_model_values *config)
{
    kr_json_write_bool(w, key->name, truth_of(key, config));
}

const kr_key_kind kr_bool_key = { sizeof(bool), read_bool, is_in_range, write_bool, NULL, NULL };

static int count_words(const kr_key *key)
{
    int n = 0;
    while (key->words[n]) n++;
    return n;
}

/* -1 after an error that names the choices. */
static int read_choice(kr_reading *r, const kr_key *key, const kr_json *value)
{
    char rule[160];
    size_t n = 0;
    for (int i = 0; key->words[i]; i++) {
        if (kr_json_is_word(value, key->words[i])) return i;
        const char *between = i == 0 ? "" : key->words[i + 1] ? ", " : " or ";
        n += (size_t)snprintf(rule + n, sizeof rule - n, "%s'%s'", between, key->words[i]);
        assert(n < sizeof rule);
    }
    kr_key_refuse(r, key->name, value, rule);
    return -1;
}

static bool read_two(kr_reading *r, const kr_key *key, const kr_json *value)
{
    const int choice = read_choice(r, key, value);
    const bool is_second = choice == 1;
    if (choice >= 0) set_field(key, r->config, &is_second);
    return choice >= 0;
}

static void write_two(kr_json_writer *w, const kr_key *key, const kr_model_values *config)
{
    kr_json_write_string(w, key->name, key->words[truth_of(key, config)]);
}

const kr_key_kind kr_choice_key = { sizeof(bool), read_two, is_in_range, write_two, NULL, NULL };

static int word_of(const kr_key *key, const kr_model_values *config)
{
    int word;
    memcpy(&word, field_of(key, config), sizeof word);
    return word;
}

static bool read_word(kr_reading *r, const kr_key *key, const kr_json *value)
{
    const int choice = read_choice(r, key, value);
    if (choice >= 0) set_field(key, r->config, &choice);
    return choice >= 0;
}

static bool check_word(kr_ctx *ctx, const char *prefix, const kr_key *key, const kr_model_values *config)
{
    const int word = word_of(key, config), count = count_words(key);
    return kr_require(ctx, word >= 0 && word < count, KR_ERR_FORMAT,
                      "config.json: %s%s = %d, but must be from 0 to %d: '%s' ...", prefix, key->name, word, count - 1,
                      key->words[0]);
}

static void write_word(kr_json_writer *w, const kr_key *key, const kr_model_values *config)
{
    kr_json_write_string(w, key->name, key->words[word_of(key, config)]);
}

_Static_assert(sizeof(kr_schedule) == sizeof(int), "enums are read and written as int");
const kr_key_kind kr_word_key = { sizeof(int), read_word, check_word, write_word, NULL, NULL };

/* ---- tables ---- */

static const kr_key *find_key(const kr_json *member, const kr_keys *const *tables, int ntables)
{
    for (int t = 0; t < ntables; t++)
        for (size_t i = 0; i < tables[t]->count; i++) {
            const kr_key *key = &tables[t]->rows[i];
            const size_t length = strlen(key->name);
            if (length == member->key_length && memcmp(key->name, member->key, length) == 0) return key;
        }
    return NULL;
}

bool kr_keys_read(kr_reading *r, const kr_keys *const *tables, int ntables, bool is_strict)
{
    for (const kr_json *member = kr_json_first(r->object); member; member = kr_json_next(member)) {
        const kr_key *key = find_key(member, tables, ntables);
        if (!key) {
            const kr_quote name = kr_quote_of(member->key, member->key_length);
            if (is_strict)
                return kr_fail(r->ctx, KR_ERR_FORMAT, "config.json: the key '%s%s' is unknown", r->prefix, name.text);
            kr_note(r->ctx, KR_LOG_WARNING, "config.json: the key '%s%s' is unknown and was ignored", r->prefix,
                    name.text);
            continue;
        }
        const bool is_sentinel = (key->flags & KR_KEY_NULLABLE) && kr_json_kind_of(member) == KR_JSON_NULL;
        if (key->kind && !is_sentinel &&
            (!key->kind->read(r, key, member) || !key->kind->check(r->ctx, r->prefix, key, r->config)))
            return false;
    }
    return true;
}

bool kr_keys_check(kr_ctx *ctx, const char *prefix, const kr_keys *keys, const kr_model_values *config)
{
    for (size_t i = 0; i < keys->count; i++) {
        const kr_key *key = &keys->rows[i];
        if (key->kind && !key->kind->check(ctx, prefix, key, config)) return false;
    }
    return true;
}

bool kr_key_same(const kr_key *key, const kr_model_values *a, const kr_model_values *b)
{
    if (key->kind->same) return key->kind->same(a, b);
    return memcmp(field_of(key, a), field_of(key, b), key->kind->bytes) == 0;
}

void kr_keys_write(kr_json_writer *w, const kr_keys *keys, const kr_model_values *config,
                   const kr_model_values *defaults)
{
    for (size_t i = 0; i < keys->count; i++) {
        const kr_key *key = &keys->rows[i];
        if (!key->kind || !key->kind->write) continue;
        if ((key->flags & KR_KEY_ALWAYS) || !kr_key_same(key, config, defaults)) key->kind->write(w, key, config);
    }
}

void kr_keys_copy(const kr_keys *keys, kr_model_values *to, const kr_model_values *from)
{
    for (size_t i = 0; i < keys->count; i++) {
        const kr_key *key = &keys->rows[i];
        if (!key->kind) continue;
        if (key->kind->copy) key->kind->copy(to, from);
        else set_field(key, to, field_of(key, from));
    }
}
