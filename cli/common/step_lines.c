/* step_lines.c - writes CSV files of steps, or continues those of a resumed run. */
#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64
#include "cli/common/step_lines.h"

#include "cli/common/cli_options.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LINE_BYTES = 1024 };

/* Bytes of whole lines up to last_step; -1 if the first one is another than the header. */
static long long bytes_to_keep(FILE *file, const char *header, int64_t last_step)
{
    char line[LINE_BYTES], *end;
    const size_t n = strlen(header);
    if (!fgets(line, sizeof line, file) || strncmp(line, header, n) != 0 || strcmp(line + n, "\n") != 0) return -1;
    long long kept = (long long)n + 1;
    while (fgets(line, sizeof line, file) && strchr(line, '\n')) {
        const long long step = strtoll(line, &end, 10);
        if (end == line || step > last_step) break;
        kept += (long long)strlen(line);
    }
    return kept;
}

static bool reopen(cli_step_lines *lines, const char *header, int64_t last_step)
{
    lines->file = fopen(lines->path, "r+b");
    if (!lines->file) return cli_cannot("open", lines->path, errno);
    const long long kept = bytes_to_keep(lines->file, header, last_step);
    if (kept < 0) {
        cli_complain("move it away to start a new file", "%s does not begin with the line \"%s\"", lines->path, header);
        return false;
    }
    if (ftruncate(fileno(lines->file), (off_t)kept) != 0 || fseeko(lines->file, (off_t)kept, SEEK_SET) != 0)
        return cli_cannot("write", lines->path, errno);
    return true;
}

bool cli_step_lines_open(cli_step_lines *lines, const char *folder, const char *name, const char *header,
                         int64_t last_step)
{
    *lines = (cli_step_lines){ 0 };
    if (!cli_join(lines->path, folder, name)) return false;
    bool is_open;
    if (last_step >= 0 && cli_exists(lines->path)) {
        is_open = reopen(lines, header, last_step);
    } else {
        lines->file = fopen(lines->path, "wb");
        is_open = lines->file && fprintf(lines->file, "%s\n", header) > 0 && !fflush(lines->file);
        if (!is_open) cli_cannot("write", lines->path, errno);
    }
    if (!is_open && lines->file) fclose(lines->file);
    if (!is_open) lines->file = NULL;
    return is_open;
}

bool cli_step_lines_put(cli_step_lines *lines, int64_t step, int n_keys, const int64_t *keys, int count,
                        const double *values)
{
    if (!lines->file) return true;
    bool is_written = fprintf(lines->file, "%" PRId64, step) > 0;
    for (int i = 0; i < n_keys; i++) is_written = fprintf(lines->file, ",%" PRId64, keys[i]) > 0 && is_written;
    for (int i = 0; i < count; i++) {
        const int n = isnan(values[i]) ? fprintf(lines->file, ",") : fprintf(lines->file, ",%.9g", values[i]);
        is_written = n > 0 && is_written;
    }
    is_written = fputc('\n', lines->file) != EOF && !fflush(lines->file) && is_written;
    return is_written || cli_cannot("write", lines->path, errno);
}

bool cli_step_lines_close(cli_step_lines *lines)
{
    FILE *file = lines->file;
    lines->file = NULL;
    return !file || !fclose(file) || cli_cannot("write", lines->path, errno);
}
