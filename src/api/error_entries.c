/* error_entries.c - entries of the functions that differ from the generated ones (base/entry.h): those that read and set the
 * error of a context, and the last one of its life. */
#include "base/entry.h"

#include <stdarg.h>
#include <stdio.h>

kr_status kr_ctx_status_impl(const kr_ctx *ctx);
const char *kr_ctx_message_impl(const kr_ctx *ctx);
kr_status kr_ctx_fail_impl(kr_ctx *ctx, kr_status status, const char *format, ...) KR_PRINTF(3, 4);
void kr_ctx_destroy_impl(kr_ctx *ctx);

/* For any thread, at any time. */
kr_status kr_ctx_status(const kr_ctx *ctx)
{
    const kr_status status = kr_ctx_status_impl(ctx);
    return status == KR_OK && kr_ctx_is_shared(ctx) ? KR_ERR_STATE : status;
}

/* What the text is while another thread may be writing it. */
static const char shared_text[] = KR_SHARED_TEXT;

const char *kr_ctx_message(const kr_ctx *ctx)
{
    kr_entry entry;
    kr_ctx *own = (kr_ctx *)ctx;
    if (own && kr_ctx_is_forked(own)) return kr_ctx_message_impl(own);
    if (!kr_entry_begin(&entry, own, NULL, KR_ENTRY_COMPUTES)) return shared_text;
    const char *text = kr_ctx_message_impl(own);
    kr_entry_end(&entry);
    return text;
}

kr_status kr_ctx_fail(kr_ctx *ctx, kr_status status, const char *format, ...)
{
    char text[sizeof ctx->message];
    text[0] = '\0';
    if (format) {
        va_list list;
        va_start(list, format);
        vsnprintf(text, sizeof text, format, list);
        va_end(list);
    }
    kr_entry entry;
    if (!kr_entry_begin(&entry, ctx, NULL, KR_ENTRY_COMPUTES)) return KR_ERR_STATE;
    status = kr_ctx_fail_impl(ctx, status, "%s", text);
    kr_entry_end(&entry);
    return status;
}

/* There is nothing left to end. */
void kr_ctx_destroy(kr_ctx *ctx)
{
    kr_entry entry;
    if (kr_entry_begin(&entry, ctx, NULL, KR_ENTRY_DESTROYS)) kr_ctx_destroy_impl(ctx);
}
