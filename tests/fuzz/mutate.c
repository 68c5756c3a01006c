/* mutate.c - runs a fuzz harness without a fuzzer: every seed as it is, then changed copies of seeds, always the same
 * ones. It finds less than libFuzzer (tests/fuzz/run), but runs in any build, with any compiler, in a second or two.
 *
 *   fuzz_NAME COUNT FOLDER...     COUNT changed inputs out of the files in the folders; ends with "1 passed, 0 failed"
 */
#define _POSIX_C_SOURCE 200809L
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
__attribute__((weak)) int LLVMFuzzerInitialize(int *argc, char ***argv);

enum { MOST_BYTES = 1 << 16, MOST_SEEDS = 4096 };

typedef struct seed {
    uint8_t *data;
    size_t size;
} seed;

static seed seeds[MOST_SEEDS];
static int nseeds;

static void read_seed(const char *path)
{
    FILE *f = fopen(path, "rb");
    uint8_t *data = malloc(MOST_BYTES);
    if (!f || !data || nseeds == MOST_SEEDS) abort();
    const size_t size = fread(data, 1, MOST_BYTES, f);
    fclose(f);
    seeds[nseeds++] = (seed){ data, size };
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* In the order of their names, so that every run is the same. */
static void read_folder(const char *folder)
{
    static char *paths[MOST_SEEDS];
    int count = 0;
    DIR *dir = opendir(folder);
    for (struct dirent *entry; dir && (entry = readdir(dir)) && count < MOST_SEEDS;) {
        if (entry->d_name[0] == '.') continue;
        const size_t bytes = strlen(folder) + strlen(entry->d_name) + 2;
        if (!(paths[count] = malloc(bytes))) abort();
        snprintf(paths[count++], bytes, "%s/%s", folder, entry->d_name);
    }
    if (dir) closedir(dir);
    qsort(paths, (size_t)count, sizeof *paths, by_name);
    for (int i = 0; i < count; i++) {
        read_seed(paths[i]);
        free(paths[i]);
    }
}

static uint64_t state = 0x9e3779b97f4a7c15u;

static size_t draw(size_t n)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return n ? (size_t)(state % n) : 0;
}

/* One change: a bit, a byte, an interesting number, a cut, a piece repeated, or a piece of another seed. */
static size_t change(uint8_t *data, size_t size)
{
    static const uint8_t words[][8] = {
        { 0 }, { 255, 255, 255, 255, 255, 255, 255, 255 }, { 255, 255, 255, 127 }, { 1 }
    };
    const size_t at = draw(size), left = size - at;
    const seed *other = &seeds[draw((size_t)nseeds)];
    size_t n;
    switch (size ? draw(6) : 5) {
    case 0: data[at] ^= (uint8_t)(1u << draw(8)); return size;
    case 1: data[at] = (uint8_t)draw(256); return size;
    case 2:
        n = (size_t)1 << draw(4);
        memcpy(data + at, words[draw(4)], n < left ? n : left);
        return size;
    case 3:
        n = 1 + draw(left);
        memmove(data + at, data + at + n, left - n);
        return size - n;
    case 4:
        n = 1 + draw(left < 64 ? left : 64);
        if (size + n > MOST_BYTES) return size;
        memmove(data + at + n, data + at, left);
        return size + n;
    default:
        n = draw(other->size < 256 ? other->size : 256);
        if (at + n > MOST_BYTES) return size;
        memcpy(data + at, other->data + draw(other->size - n), n);
        return at + n > size ? at + n : size;
    }
}

int main(int argc, char **argv)
{
    const long count = argc > 2 ? strtol(argv[1], NULL, 10) : 0;
    static uint8_t input[MOST_BYTES];
    if (LLVMFuzzerInitialize && LLVMFuzzerInitialize(&argc, &argv) != 0) return 1;
    for (int i = 2; i < argc; i++) read_folder(argv[i]);
    if (nseeds == 0) {
        printf("no seeds in %s\n0 passed, 1 failed\n", argc > 2 ? argv[2] : "no folder");
        return 1;
    }
    for (int i = 0; i < nseeds; i++) LLVMFuzzerTestOneInput(seeds[i].data, seeds[i].size);
    for (long i = 0; i < count; i++) {
        const seed *from = &seeds[draw((size_t)nseeds)];
        size_t size = from->size;
        memcpy(input, from->data, size);
        for (size_t changes = 1 + draw(4); changes > 0; changes--) size = change(input, size);
        uint8_t *exact = malloc(size ? size : 1); /* of its own size: a byte too far is seen */
        if (!exact) abort();
        memcpy(exact, input, size);
        LLVMFuzzerTestOneInput(exact, size);
        free(exact);
    }
    for (int i = 0; i < nseeds; i++) free(seeds[i].data);
    printf("%d seeds, %ld changed inputs\n1 passed, 0 failed\n", nseeds, count);
    return 0;
}
