/* cli_files.c - files and folders of this system. */
#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64
#include "cli/common/cli_files.h"

#include "cli/common/cli_options.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char cli_model_remedy[] =
    "a model folder holds config.json and model.safetensors or pytorch_model.bin; make one with `krait new` or "
    "`krait train`";

bool cli_cannot(const char *verb, const char *path, int error)
{
    char reason[128];
    if (strerror_r(error, reason, sizeof reason) != 0) snprintf(reason, sizeof reason, "error %d", error);
    if (reason[0] >= 'A' && reason[0] <= 'Z') reason[0] = (char)(reason[0] - 'A' + 'a');
    cli_complain(NULL, "cannot %s %s: %s", verb, path, reason);
    return false;
}

bool cli_join(char *text, const char *folder, const char *name)
{
    const size_t length = strlen(folder);
    const char *slash = length && folder[length - 1] == '/' ? "" : "/";
    const int n = snprintf(text, CLI_PATH_BYTES, "%s%s%s", folder, slash, name);
    return (n > 0 && n < CLI_PATH_BYTES) || cli_cannot("open", folder, ENAMETOOLONG);
}

bool cli_exists(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0;
}

bool cli_is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

bool cli_make_folder(const char *path)
{
    char part[CLI_PATH_BYTES];
    const size_t length = strlen(path);
    if (length >= sizeof part) return cli_cannot("make", path, ENAMETOOLONG);
    for (size_t n = 1; n <= length; n++) {
        if (path[n] && path[n] != '/') continue;
        snprintf(part, n + 1, "%s", path);
        if (mkdir(part, 0777) != 0 && errno != EEXIST) return cli_cannot("make", part, errno);
    }
    return cli_is_folder(path) || cli_cannot("make", path, ENOTDIR);
}

bool cli_is_same(const char *path, const char *other)
{
    struct stat a, b;
    return stat(path, &a) == 0 && stat(other, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

const char *cli_model_file(const char *folder)
{
    static const char *const names[] = { "config.json", "model.safetensors", "model.safetensors.index.json",
                                         "pytorch_model.bin", "pytorch_model.bin.index.json" };
    char path[CLI_PATH_BYTES];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (cli_join(path, folder, names[i]) && cli_exists(path)) return names[i];
    return NULL;
}

bool cli_may_write_model(const char *command, const char *folder, bool force)
{
    if (!cli_exists(folder)) return true;
    if (!cli_is_folder(folder)) {
        cli_complain(NULL, "%s: %s exists and is not a directory", command, folder);
        return false;
    }
    const char *name = cli_model_file(folder);
    if (!name || force) return true;
    cli_complain("choose another folder, or replace it with --force", "%s: %s holds a model already (%s)", command,
                 folder, name);
    return false;
}

char *cli_read_file(const char *path, size_t max_bytes, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    struct stat info;
    if (!file || fstat(fileno(file), &info) != 0) {
        cli_cannot("open", path, errno);
        if (file) fclose(file);
        return NULL;
    }
    const bool is_small = S_ISREG(info.st_mode) && (uint64_t)info.st_size <= max_bytes;
    char *text = is_small ? malloc((size_t)info.st_size + 1) : NULL;
    if (!is_small && S_ISREG(info.st_mode))
        cli_complain(NULL, "cannot read %s: %lld bytes, but at most %zu are read", path, (long long)info.st_size,
                     max_bytes);
    else if (!text) cli_cannot("read", path, is_small ? ENOMEM : EINVAL);
    if (text) {
        *bytes = fread(text, 1, (size_t)info.st_size, file);
        text[*bytes] = 0;
        if (ferror(file)) {
            cli_cannot("read", path, EIO);
            free(text);
            text = NULL;
        }
    }
    fclose(file);
    return text;
}

static bool copy_bytes(FILE *in, FILE *out, const char *from, const char *to)
{
    char buffer[1 << 16];
    size_t n;
    while ((n = fread(buffer, 1, sizeof buffer, in)) > 0)
        if (fwrite(buffer, 1, n, out) != n) return cli_cannot("write", to, errno);
    if (ferror(in)) return cli_cannot("read", from, EIO);
    if (fflush(out) != 0 || fsync(fileno(out)) != 0) return cli_cannot("write", to, errno);
    return true;
}

bool cli_copy_file(const char *from, const char *to)
{
    char temporary[CLI_PATH_BYTES];
    const int n = snprintf(temporary, sizeof temporary, "%s.%ld.tmp", to, (long)getpid());
    if (n < 0 || n >= (int)sizeof temporary) return cli_cannot("write", to, ENAMETOOLONG);
    FILE *in = fopen(from, "rb");
    if (!in) return cli_cannot("open", from, errno);
    FILE *out = fopen(temporary, "wb");
    bool ok = out ? copy_bytes(in, out, from, to) : cli_cannot("write", to, errno);
    if (out && fclose(out) != 0 && ok) ok = cli_cannot("write", to, errno);
    if (ok && rename(temporary, to) != 0) ok = cli_cannot("write", to, errno);
    if (out && !ok) unlink(temporary);
    fclose(in);
    return ok;
}

const char *cli_shell_word(const char *path, char *text, size_t bytes)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+=:,@%";
    if (path[0] != '-' && path[strspn(path, plain)] == 0) {
        snprintf(text, bytes, "%s", path);
        return text;
    }
    size_t n = (size_t)snprintf(text, bytes, "%s'", path[0] == '-' ? "./" : "");
    for (const char *c = path; *c && n + 6 < bytes; c++)
        n += (size_t)snprintf(text + n, bytes - n, *c == '\'' ? "'\\''" : "%c", *c);
    snprintf(text + n, bytes - n, "'");
    return text;
}

size_t cli_size_of(const char *text)
{
    static const struct {
        const char *name;
        double bytes;
    } units[] = { { "", 1 },         { "B", 1 },        { "KB", 1e3 },     { "MB", 1e6 },    { "GB", 1e9 },
                  { "TB", 1e12 },    { "K", 1e3 },      { "M", 1e6 },      { "G", 1e9 },     { "T", 1e12 },
                  { "KiB", 0x1p10 }, { "MiB", 0x1p20 }, { "GiB", 0x1p30 }, { "TiB", 0x1p40 } };
    char *end;
    if (*text < '0' || *text > '9') return 0;
    const double number = strtod(text, &end);
    if (end == text) return 0;
    while (*end == ' ') end++;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strcmp(end, units[i].name)) continue;
        const double bytes = number * units[i].bytes;
        return bytes >= 1 && bytes < 0x1p62 ? (size_t)bytes : 0;
    }
    return 0;
}
