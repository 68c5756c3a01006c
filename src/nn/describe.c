/* describe.c - a parameter table as text.
 *
 *   name                     shape          count  begins as              decay  optimizer
 *   in_proj.weight           [228, 32]       7296  uniform -0.18 .. 0.18  yes    muon[z:64 x:64 b:32 c:32 dt:4*]
 *   total 12345 parameters, 7012 on muon (56.8 %)
 * A star marks the rows of a fused weight that stay with AdamW.
 */
#include "nn/init.h"
#include "nn/params.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* snprintf that goes on where the last one stopped, and counts what did not fit. */
typedef struct page {
    char *text;
    size_t room, length;
} page;

static void write_text(page *p, const char *format, ...) KR_PRINTF(2, 3);
static void write_text(page *p, const char *format, ...)
{
    const bool fits = p->length < p->room;
    va_list list;
    va_start(list, format);
    const int length = vsnprintf(fits ? p->text + p->length : NULL, fits ? p->room - p->length : 0, format, list);
    va_end(list);
    if (length > 0) p->length += (size_t)length;
}

/* Elements that Muon steps. */
static int64_t muon_elements(const kr_param_row *row)
{
    int64_t rows = 0;
    for (int i = 0; i < row->nsegments; i++)
        if (row->segments[i].muon) rows += row->segments[i].rows;
    const int64_t first = kr_tensor_dim(row->tensor, 0);
    return first ? kr_tensor_count(row->tensor) / first * rows : 0;
}

static void write_owner(page *p, const kr_param_row *row)
{
    if (!row->nsegments) {
        write_text(p, "adamw\n");
        return;
    }
    write_text(p, "muon[");
    for (int i = 0; i < row->nsegments; i++)
        write_text(p, "%s%s:%lld%s", i ? " " : "", row->segments[i].name, (long long)row->segments[i].rows,
                   row->segments[i].muon ? "" : "*");
    write_text(p, "]\n");
}

size_t kr_params_describe(const kr_params *params, char *text, size_t bytes)
{
    page p = { text, bytes, 0 };
    if (text && bytes) text[0] = '\0';
    const int64_t count = kr_params_count(params);
    int width = 4;
    for (int64_t i = 0; i < count; i++) {
        const int length = (int)strlen(kr_params_at(params, i)->name);
        if (length > width) width = length;
    }
    write_text(&p, "%-*s  %-20s %-8s %10s  %-28s %-5s  %s\n", width, "name", "shape", "axes", "count", "begins as",
               "decay", "optimizer");
    int64_t on_muon = 0;
    for (int64_t i = 0; i < count; i++) {
        const kr_param_row *row = kr_params_at(params, i);
        char init[64], shape[KR_SHAPE_TEXT_BYTES];
        write_text(&p, "%-*s  %-20s %-8s %10lld  %-28s %-5s  ", width, row->name,
                   kr_shape_text(row->tensor, shape, sizeof shape), row->axes, (long long)kr_tensor_count(row->tensor),
                   kr_init_text(&row->init, row->init_scale, init, sizeof init), row->decays ? "yes" : "no");
        write_owner(&p, row);
        on_muon += muon_elements(row);
    }
    const int64_t total = kr_params_elements(params);
    write_text(&p, "total %lld parameters, %lld on muon (%.1f %%)\n", (long long)total, (long long)on_muon,
               total ? 100.0 * (double)on_muon / (double)total : 0.0);
    return p.length;
}
