/* describe.c - a parameter table as text.
 *
 *   name                     shape          count  begins as              decay  optimizer
 *   in_proj.weight           [228, 32]       7296  uniform -0.18 .. 0.18  yes    muon[z:64 x:64 b:32 c:32 dt:4*]
 *   total 12345 parameters, 7012 on muon (56.8 %)
 * A star marks the rows of a fused weight that stay with AdamW.
 */
#include "base/text_buffer.h"
#include "nn/init.h"
#include "nn/params_impl.h"

#include <string.h>

/* Elements that Muon steps. */
static int64_t muon_elements(const kr_param_row *row)
{
    int64_t rows = 0;
    for (int i = 0; i < row->n_segments; i++)
        if (row->segments[i].use_muon) rows += row->segments[i].rows;
    const int64_t first = kr_dim_of(row->tensor, 0);
    return first ? kr_count_of(row->tensor) / first * rows : 0;
}

static void write_owner(kr_text_buffer *p, const kr_param_row *row)
{
    if (!row->n_segments) {
        kr_text_buffer_print(p, "adamw\n");
        return;
    }
    kr_text_buffer_print(p, "muon[");
    for (int i = 0; i < row->n_segments; i++)
        kr_text_buffer_print(p, "%s%s:%lld%s", i ? " " : "", row->segments[i].name, (long long)row->segments[i].rows,
                             row->segments[i].use_muon ? "" : "*");
    kr_text_buffer_print(p, "]\n");
}

size_t kr_params_describe(const kr_params *params, char *text, size_t bytes)
{
    kr_text_buffer p = kr_text_buffer_of(text, bytes);
    const int64_t count = kr_params_count(params);
    int width = 4;
    for (int64_t i = 0; i < count; i++) {
        const int length = (int)strlen(kr_params_at(params, i)->name);
        if (length > width) width = length;
    }
    kr_text_buffer_print(&p, "%-*s  %-20s %-8s %10s  %-28s %-5s  %s\n", width, "name", "shape", "axes", "count",
                         "begins as", "decay", "optimizer");
    int64_t on_muon = 0;
    for (int64_t i = 0; i < count; i++) {
        const kr_param_row *row = kr_params_at(params, i);
        char init[64], shape[KR_SHAPE_TEXT_BYTES];
        kr_text_buffer_print(
            &p, "%-*s  %-20s %-8s %10lld  %-28s %-5s  ", width, row->name,
            kr_shape_text(row->tensor, shape, sizeof shape), row->axes, (long long)kr_count_of(row->tensor),
            kr_init_text(&row->init, row->init_scale, init, sizeof init), row->has_decay ? "yes" : "no");
        write_owner(&p, row);
        on_muon += muon_elements(row);
    }
    const int64_t total = kr_params_elements(params);
    kr_text_buffer_print(&p, "total %lld parameters, %lld on muon (%.1f %%)\n", (long long)total, (long long)on_muon,
                         total ? 100.0 * (double)on_muon / (double)total : 0.0);
    return p.length;
}
