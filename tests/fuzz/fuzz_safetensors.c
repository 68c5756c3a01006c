/* fuzz_safetensors.c - any bytes as a file of tensors: an open file all of which can be read, or an error. */
#define _POSIX_C_SOURCE 200809L
#include "fuzz.h"

#include "io/safetensors_impl.h"

static void read_item(const kr_safetensors *file, const kr_safetensors_item *item)
{
    const bool is_float = item->dtype != KR_DTYPE_I32 && item->dtype != KR_DTYPE_I64;
    void *out = malloc((size_t)item->count * 8 + 1);
    if (!out) abort();
    if (item->is_readable &&
        kr_safetensors_read(file, item, is_float ? KR_DTYPE_F64 : KR_DTYPE_I64, out, item->count) != KR_OK)
        abort();
    free(out);
    volatile unsigned char sum = 0;
    for (size_t i = 0; i < item->bytes; i++) sum = (unsigned char)(sum + ((const unsigned char *)item->data)[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kr_ctx *ctx = fuzz_ctx();
    if (size == 0) return 0;
    kr_safetensors *file = kr_safetensors_open_memory(ctx, data, size);
    if ((file != NULL) == kr_ctx_failed(ctx)) abort();
    for (int64_t i = 0; i < kr_safetensors_count(file); i++) {
        const kr_safetensors_item *item = kr_safetensors_at(file, i);
        if (kr_safetensors_find(file, item->name) != item) abort();
        read_item(file, item);
    }
    const char *key, *value;
    for (int64_t i = 0; kr_safetensors_metadata_at(file, i, &key, &value); i++)
        if (kr_safetensors_metadata(file, key) != value) abort();
    kr_safetensors_close(file);
    kr_ctx_clear(ctx);
    return 0;
}
