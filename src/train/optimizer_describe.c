/* optimizer_describe.c - an optimizer as text.
 *
 *   rank  name            shape      count  decay  updated by
 *      1  dt_bias         [4]            4  no     adamw
 *      2  in_proj.weight  [228, 32]   7296  yes    muon[z:64 x:64 b:32 c:32 dt:4* ..]
 *   total 12345 parameters, 7168 on muon (58.1 %)
 * A star marks the rows of a fused weight that are AdamW's.
 */
#include "train/optimizer_impl.h"

#include "base/text_buffer.h"

#include <string.h>

static void write_owner(kr_text_buffer *buffer, const kr_optimizer_slot *slot)
{
    if (slot->nparts == 0 || !slot->parts[0].segment) {
        kr_text_buffer_print(buffer, "%s", slot->nparts ? kr_optimizer_kind_name(slot->parts[0].kind) : "nothing");
        return;
    }
    kr_text_buffer_print(buffer, "muon[");
    for (int p = 0; p < slot->nparts; p++) {
        const kr_optimizer_part *part = &slot->parts[p];
        kr_text_buffer_print(buffer, "%s%s:%lld%s", p ? " " : "", part->segment->name, (long long)part->segment->rows,
                             part->kind == KR_OPTIMIZER_MUON ? "" : "*");
    }
    kr_text_buffer_print(buffer, "]");
}

size_t kr_optimizer_describe(const kr_optimizer *opt, char *text, size_t bytes)
{
    kr_text_buffer buffer = kr_text_buffer_of(text, bytes);
    if (!opt) return 0;
    int width = 4;
    int64_t on_muon = 0, total = 0;
    for (int64_t i = 0; i < opt->count; i++) {
        const int length = (int)strlen(opt->slots[i].row->name);
        if (length > width) width = length;
    }
    kr_text_buffer_print(&buffer, "rank  %-*s  %-20s %10s  %-5s  updated by\n", width, "name", "shape", "count",
                         "decay");
    for (int64_t i = 0; i < opt->count; i++) {
        const kr_optimizer_slot *slot = &opt->slots[i];
        const kr_tensor *w = slot->row->tensor;
        kr_text_buffer_print(&buffer, "%4d  %-*s  %-20s %10lld  %-5s  ", w->rank, width, slot->row->name, KR_TEXT_OF(w),
                             (long long)kr_count_of(w), slot->row->has_decay || opt->options.decay_all ? "yes" : "no");
        write_owner(&buffer, slot);
        kr_text_buffer_print(&buffer, "\n");
        total += kr_count_of(w);
        for (int p = 0; p < slot->nparts; p++)
            on_muon += slot->parts[p].kind == KR_OPTIMIZER_MUON ? slot->parts[p].count : 0;
    }
    kr_text_buffer_print(&buffer, "total %lld parameters, %lld on muon (%.1f %%)\n", (long long)total,
                         (long long)on_muon, total ? 100.0 * (double)on_muon / (double)total : 0.0);
    return buffer.length;
}
