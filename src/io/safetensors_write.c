/* safetensors_write.c - a file out of tensors that lie in memory: the header as text, then their bytes as they are.
 *
 * Spaces at the header's end bring the elements to a multiple of 64 bytes.
 */
#include "io/safetensors_write.h"

#include "io/compose.h"
#include "io/safetensors_impl.h"

enum { ALIGN = 64 };

/* ---- the header ---- */

static void put_tensor(kr_composer *c, const kr_named *e, size_t from)
{
    kr_put_json_string(c, e->name);
    kr_put_text(c, ":{\"dtype\":");
    kr_put_json_string(c, kr_safetensors_type_of(e->dtype)->name);
    kr_put_text(c, ",\"shape\":[");
    for (int i = 0; i < e->shape.rank; i++) {
        if (i) kr_put_text(c, ",");
        kr_put_number(c, (uint64_t)e->shape.dims[i]);
    }
    kr_put_text(c, "],\"data_offsets\":[");
    kr_put_number(c, from);
    kr_put_text(c, ",");
    kr_put_number(c, from + e->bytes);
    kr_put_text(c, "]}");
}

static void compose(kr_composer *c, const kr_safetensors_content *content)
{
    const char *between = "{";
    for (int64_t i = 0; i < content->ntexts; i++) {
        kr_put_text(c, i == 0 ? "{\"__metadata__\":{" : ",");
        kr_put_json_string(c, content->texts[i]->name);
        kr_put_text(c, ":");
        kr_put_json_string(c, content->texts[i]->value);
    }
    if (content->ntexts) {
        kr_put_text(c, "}");
        between = ",";
    }
    size_t from = 0;
    for (int64_t i = 0; i < content->ntensors; i++) {
        kr_put_text(c, between);
        put_tensor(c, content->tensors[i], from);
        from += content->tensors[i]->bytes;
        between = ",";
    }
    kr_put_text(c, *between == '{' ? "{}" : "}");
    while ((KR_SAFETENSORS_PREFIX + c->length) % ALIGN) kr_put_text(c, " ");
}

/* ---- saving ---- */

static bool write_all(kr_file_writer *file, const kr_safetensors_content *content, char *head, size_t header_bytes)
{
    kr_put_bytes(&(kr_composer){ .text = head }, header_bytes, KR_SAFETENSORS_PREFIX);
    compose(&(kr_composer){ .text = head + KR_SAFETENSORS_PREFIX }, content);
    if (!kr_file_write(file, head, KR_SAFETENSORS_PREFIX + header_bytes)) return false;
    for (int64_t i = 0; i < content->ntensors; i++)
        if (!kr_file_write(file, content->tensors[i]->data, content->tensors[i]->bytes)) return false;
    return true;
}

bool kr_safetensors_write(kr_file_writer *file, const kr_safetensors_content *content)
{
    kr_ctx *ctx = file->ctx;
    kr_composer measure = { .text = NULL };
    compose(&measure, content);
    const size_t bytes = KR_SAFETENSORS_PREFIX + measure.length;
    if (!kr_safetensors_check_machine(ctx) ||
        !kr_require(ctx, measure.length <= KR_SAFETENSORS_HEADER_MAX, KR_ERR_ARG,
                    "the header would have %zu bytes, but at most %zu are allowed", measure.length,
                    KR_SAFETENSORS_HEADER_MAX))
        return false;
    char *head = kr_memory_alloc(&ctx->memory, bytes);
    if (!head)
        return kr_fail(ctx, KR_ERR_NOMEM, "cannot write %s: no memory for a header of %zu bytes", file->path, bytes);
    const bool done = write_all(file, content, head, measure.length);
    kr_memory_free(&ctx->memory, head, bytes);
    return done;
}
