/* tensors.c - lists tensors, one line for similar ones.
 *
 * A name is split at its first numeric component, between dots: "layers." 12 ".norm.weight". Tensors with the same
 * words around it, the same type and the same shape make one line. Sorted by these they are neighbours.
 */
#include "cli/common/tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct named {
    const kr_tensor_file_item *item;
    int64_t at;      /* its place in the files */
    size_t head;     /* letters before the number */
    int64_t number;  /* -1: there is none */
    const char *end; /* the rest of the name */
} named;

/* One line: all[first .. first + count) of the sorted names. */
typedef struct line {
    int64_t first, count, at;
} line;

/* ---- types and sums ---- */

const char *cli_tensor_type(const kr_tensor_file_item *item)
{
    const bool is_ours = item->is_readable && (size_t)item->count * kr_dtype_bytes(item->dtype) == item->bytes;
    return is_ours ? kr_dtype_name(item->dtype) : item->type;
}

enum { MOST_TYPES = 8 };

cli_tensors cli_tensors_of(const kr_tensor_file *weights)
{
    struct {
        const char *name;
        double bytes;
    } types[MOST_TYPES];
    int ntypes = 0;
    cli_tensors sums = { .count = kr_tensor_file_count(weights) };
    for (int64_t i = 0; i < sums.count; i++) {
        const kr_tensor_file_item *item = kr_tensor_file_at(weights, i);
        const char *name = cli_tensor_type(item);
        int t = 0;
        sums.elements += (double)item->count;
        sums.bytes += (double)item->bytes;
        while (t < ntypes && strcmp(types[t].name, name) != 0) t++;
        if (t == MOST_TYPES) continue;
        if (t == ntypes) types[ntypes++].bytes = 0;
        types[t].name = name;
        types[t].bytes += (double)item->bytes;
    }
    for (size_t n = 0; ntypes > 0 && n < sizeof sums.dtypes;) {
        int largest = 0;
        for (int t = 1; t < ntypes; t++)
            if (types[t].bytes > types[largest].bytes) largest = t;
        n += (size_t)snprintf(sums.dtypes + n, sizeof sums.dtypes - n, "%s%s", n ? ", " : "", types[largest].name);
        types[largest] = types[--ntypes];
    }
    return sums;
}

/* ---- names ---- */

static named split_name(const kr_tensor_file_item *item, int64_t at)
{
    const char *name = item->name;
    for (const char *part = name; *part;) {
        const size_t digits = strspn(part, "0123456789"), length = strcspn(part, ".");
        if (digits == length && digits > 0 && digits < 10 && (part[0] != '0' || digits == 1))
            return (named){ item, at, (size_t)(part - name), strtol(part, NULL, 10), part + digits };
        part += length + (part[length] == '.');
    }
    return (named){ item, at, strlen(name), -1, name + strlen(name) };
}

static int compare_kinds(const named *a, const named *b)
{
    const size_t shorter = a->head < b->head ? a->head : b->head;
    int order = memcmp(a->item->name, b->item->name, shorter);
    if (order) return order;
    if (a->head != b->head) return a->head < b->head ? -1 : 1;
    if ((order = strcmp(a->end, b->end)) != 0) return order;
    if ((a->number < 0) != (b->number < 0)) return a->number < 0 ? -1 : 1;
    if ((order = strcmp(a->item->type, b->item->type)) != 0) return order;
    if (a->item->shape.rank != b->item->shape.rank) return a->item->shape.rank < b->item->shape.rank ? -1 : 1;
    for (int axis = 0; axis < a->item->shape.rank; axis++) {
        const int64_t x = a->item->shape.dims[axis], y = b->item->shape.dims[axis];
        if (x != y) return x < y ? -1 : 1;
    }
    return 0;
}

static int compare_named(const void *a, const void *b)
{
    const named *x = a, *y = b;
    const int order = compare_kinds(x, y);
    if (order) return order;
    return x->number != y->number ? (x->number < y->number ? -1 : 1) : (x->at > y->at) - (x->at < y->at);
}

static int compare_lines(const void *a, const void *b)
{
    const line *x = a, *y = b;
    return (x->at > y->at) - (x->at < y->at);
}

/* ---- for people ---- */

/* "{0..3,5,7..9}", or the number itself if it is the only one. */
static void number_text(const named *all, const line *l, char *text, size_t bytes)
{
    size_t n = 0;
    if (l->count == 1) {
        snprintf(text, bytes, "%lld", (long long)all[l->first].number);
        return;
    }
    n += (size_t)snprintf(text, bytes, "{");
    for (int64_t i = l->first, end = l->first + l->count, last; i < end; i = last + 1) {
        for (last = i; last + 1 < end && all[last + 1].number == all[last].number + 1; last++) {}
        const char *comma = i > l->first ? "," : "";
        if (n + 32 > bytes) {
            n += (size_t)snprintf(text + n, bytes - n, "%s...", comma);
            break;
        }
        n += (size_t)snprintf(text + n, bytes - n, "%s%lld", comma, (long long)all[i].number);
        if (last > i) n += (size_t)snprintf(text + n, bytes - n, "..%lld", (long long)all[last].number);
    }
    snprintf(text + n, bytes - n, "}");
}

enum { NAME_BYTES = 400 };

static void name_text(const named *all, const line *l, char *text)
{
    const named *first = &all[l->first];
    char numbers[80];
    if (first->number < 0) {
        snprintf(text, NAME_BYTES, "%s", first->item->name);
        return;
    }
    number_text(all, l, numbers, sizeof numbers);
    snprintf(text, NAME_BYTES, "%.*s%s%s", (int)(first->head < NAME_BYTES ? first->head : NAME_BYTES),
             first->item->name, numbers, first->end);
}

static void shape_text(const kr_shape *shape, char *text, size_t bytes)
{
    size_t n = (size_t)snprintf(text, bytes, "[");
    for (int axis = 0; axis < shape->rank && n < bytes; axis++)
        n += (size_t)snprintf(text + n, bytes - n, "%s%lld", axis ? ", " : "", (long long)shape->dims[axis]);
    if (n < bytes) snprintf(text + n, bytes - n, "]");
}

static void print_line(const named *all, const line *l, int name_width)
{
    const kr_tensor_file_item *item = all[l->first].item;
    char name[NAME_BYTES], shape[200], times[24] = "";
    double bytes = 0;
    name_text(all, l, name);
    shape_text(&item->shape, shape, sizeof shape);
    for (int64_t i = l->first; i < l->first + l->count; i++) bytes += (double)all[i].item->bytes;
    if (l->count > 1) snprintf(times, sizeof times, "x%lld", (long long)l->count);
    fputs("  ", stdout);
    const int width = cli_print_clean(name);
    printf("%*s  %5s  %-5s  %-18s  %9s\n", width < name_width ? name_width - width : 0, "", times,
           cli_tensor_type(item), shape, cli_bytes_text(bytes).text);
}

static void print_lines(const named *all, const line *lines, int64_t count)
{
    char name[NAME_BYTES];
    int width = 0;
    for (int64_t i = 0; i < count; i++) {
        name_text(all, &lines[i], name);
        const int length = (int)strlen(name);
        if (length > width && length <= 72) width = length;
    }
    for (int64_t i = 0; i < count; i++) print_line(all, &lines[i], width);
}

static bool print_table(const kr_tensor_file *weights, bool is_all)
{
    const int64_t count = kr_tensor_file_count(weights);
    named *all = malloc(((size_t)count + 1) * sizeof *all);
    line *lines = malloc(((size_t)count + 1) * sizeof *lines);
    int64_t nlines = 0;
    if (all && lines) {
        for (int64_t i = 0; i < count; i++) all[i] = split_name(kr_tensor_file_at(weights, i), i);
        if (!is_all) qsort(all, (size_t)count, sizeof *all, compare_named);
        for (int64_t i = 0; i < count; i++) {
            if (!is_all && i > 0 && compare_kinds(&all[i - 1], &all[i]) == 0) {
                line *last = &lines[nlines - 1];
                last->count++;
                if (all[i].at < last->at) last->at = all[i].at;
            } else {
                lines[nlines++] = (line){ i, 1, all[i].at };
            }
        }
        qsort(lines, (size_t)nlines, sizeof *lines, compare_lines);
        print_lines(all, lines, nlines);
    }
    const bool ok = all && lines;
    free(all);
    free(lines);
    return ok;
}

/* ---- for programs ---- */

static void list_item(cli_report *r, const kr_tensor_file_item *item)
{
    cli_report_open(r, NULL, false);
    cli_report_string(r, "name", item->name);
    cli_report_string(r, "dtype", cli_tensor_type(item));
    cli_report_counts(r, "shape", item->shape.rank, item->shape.dims);
    cli_report_count(r, "bytes", (int64_t)item->bytes);
    cli_report_count(r, "file", item->shard);
    cli_report_close(r);
}

bool cli_report_tensors(cli_report *r, const kr_tensor_file *weights, bool is_all)
{
    const cli_tensors sums = cli_tensors_of(weights);
    const int nfiles = kr_tensor_file_shards(weights);
    const char *container = kr_tensor_file_container(weights) == KR_CONTAINER_TORCH ? "torch" : "safetensors";
    cli_report_open(r, r->is_json ? "files" : NULL, true);
    for (int i = 0; r->is_json && i < nfiles; i++) cli_report_string(r, NULL, kr_tensor_file_shard_path(weights, i));
    cli_report_close(r);
    cli_report_number(r, "elements", sums.elements, "%s (%.0f)", cli_count_text(sums.elements).text, sums.elements);
    cli_report_number(r, "bytes", sums.bytes, "%s in %d %s file%s", cli_bytes_text(sums.bytes).text, nfiles, container,
                      nfiles == 1 ? "" : "s");
    if (r->is_json) {
        cli_report_text(r, "container", "%s", container);
        cli_report_open(r, "tensors", true);
        for (int64_t i = 0; i < sums.count; i++) list_item(r, kr_tensor_file_at(weights, i));
        cli_report_close(r);
        return true;
    }
    cli_report_text(r, "tensors", "%lld, %s", (long long)sums.count, sums.count ? sums.dtypes : "none");
    return print_table(weights, is_all);
}
