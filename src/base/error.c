/* error.c - the sticky first error of a context, and its log. */
#include "base/ctx_impl.h"
#include "base/device_memory.h"
#include "base/names.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

bool kr_fail(kr_ctx *ctx, kr_status status, const char *format, ...)
{
    if (ctx->status != KR_OK) return false;
    ctx->status = status;
    if (ctx->failed_tape) *ctx->failed_tape = true;
    va_list list;
    va_start(list, format);
    vsnprintf(ctx->message, sizeof ctx->message, format, list);
    va_end(list);
    const size_t length = strlen(ctx->message);
    if (status == KR_ERR_NOMEM && ctx->device_access)
        ctx->device_access->explain(ctx, ctx->message + length, sizeof ctx->message - length);
    return false;
}

kr_status kr_ctx_fail(kr_ctx *ctx, kr_status status, const char *format, ...)
{
    char text[1024];
    if (status == KR_OK || status == KR_END) status = KR_ERR_ARG;
    if (!ctx) return status;
    text[0] = '\0';
    if (format) {
        va_list list;
        va_start(list, format);
        vsnprintf(text, sizeof text, format, list);
        va_end(list);
    }
    kr_fail(ctx, status, "%s", text);
    return status;
}

bool kr_blame(kr_ctx *ctx, const char *format, ...)
{
    if (ctx->status == KR_OK) return false;
    char inner[sizeof ctx->message];
    memcpy(inner, ctx->message, sizeof inner);
    va_list list;
    va_start(list, format);
    vsnprintf(ctx->message, sizeof ctx->message, format, list);
    va_end(list);
    const size_t at = strlen(ctx->message);
    snprintf(ctx->message + at, sizeof ctx->message - at, ": %.*s", (int)sizeof inner, inner);
    return false;
}

void kr_note(kr_ctx *ctx, kr_log_level level, const char *format, ...)
{
    if (!ctx->log) return;
    char line[1024];
    va_list list;
    va_start(list, format);
    vsnprintf(line, sizeof line, format, list);
    va_end(list);
    ctx->log(ctx->log_user, level, line);
}

kr_status kr_ctx_status(const kr_ctx *ctx)
{
    return ctx ? ctx->status : KR_ERR_NOMEM;
}

const char *kr_ctx_message(const kr_ctx *ctx)
{
    return ctx ? ctx->message : "kr_ctx_create: no memory for the context itself";
}

void kr_ctx_clear(kr_ctx *ctx)
{
    if (!ctx || ctx->broken) return;
    ctx->status = KR_OK;
    ctx->message[0] = '\0';
}

KR_NAMES(kr_status, "ok", "arg", "shape", "dtype", "nomem", "io", "format", "unsupported", "device", "numeric", "state",
         "internal", "end");

const char *kr_version(void)
{
#define TEXT1(x) #x
#define TEXT(x) TEXT1(x)
    return TEXT(KR_VERSION_MAJOR) "." TEXT(KR_VERSION_MINOR) "." TEXT(KR_VERSION_PATCH);
}

int kr_version_number(void)
{
    return KR_VERSION_NUMBER;
}
