/* fuzz.h - what harnesses share: a context of one thread, and a file in memory for readers that want a path. */
#ifndef KR_TESTS_FUZZ_FUZZ_H
#define KR_TESTS_FUZZ_FUZZ_H

#include <krait/ctx.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static inline kr_ctx *fuzz_ctx(void)
{
    static kr_ctx *ctx;
    if (ctx) return ctx;
    kr_ctx_options options;
    kr_ctx_options_init(&options);
    options.threads = 1;
    return ctx = kr_ctx_create(&options);
}

/* A place for files or folders, in memory if there is such; for mkstemp and mkdtemp. */
static inline char *fuzz_template(char path[64])
{
    return strcpy(path, access("/dev/shm", W_OK) == 0 ? "/dev/shm/krait_fuzz_XXXXXX" : "/tmp/krait_fuzz_XXXXXX");
}

static inline const char *fuzz_path(void);

static inline void fuzz_remove(void)
{
    remove(fuzz_path());
}

/* One file, gone when the program ends. */
static inline const char *fuzz_path(void)
{
    static char path[64];
    if (path[0]) return path;
    const int handle = mkstemp(fuzz_template(path));
    if (handle < 0) abort();
    close(handle);
    atexit(fuzz_remove);
    return path;
}

/* The file with these bytes. */
static inline const char *fuzz_file(const uint8_t *data, size_t size)
{
    FILE *f = fopen(fuzz_path(), "wb");
    if (!f || fwrite(data, 1, size, f) != size || fclose(f) != 0) abort();
    return fuzz_path();
}

/* A call that may fail: the context's error is cleared later. */
#define IGNORE(call) ((void)((call) == KR_OK))

#endif
