/* temp_folder.h - a folder of a test's own, and whole files in it. For programs that define _POSIX_C_SOURCE. */
#ifndef KR_TESTS_TEMP_FOLDER_H
#define KR_TESTS_TEMP_FOLDER_H

#include "tests/harness.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[200];

/* In memory where the system has that: thousands of small files are written, and brought to the disk. */
static inline void begin_folder(void)
{
    const char *parent = getenv("TMPDIR");
    if (!parent) parent = access("/dev/shm", W_OK | X_OK) == 0 ? "/dev/shm" : "/tmp";
    snprintf(folder, sizeof folder, "%s/krait_test_XXXXXX", parent);
    CHECK(mkdtemp(folder) != NULL, "no folder %s", folder);
}

/* Its path; good for the next three calls. */
static inline const char *in_folder(const char *name)
{
    static char paths[4][512];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

/* How many files there are; each is removed with `removes`. */
static inline int files_in_folder(bool removes)
{
    int count = 0;
    DIR *dir = opendir(folder);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        count++;
        if (removes) remove(in_folder(e->d_name));
    }
    if (dir) closedir(dir);
    return count;
}

static inline void end_folder(void)
{
    files_in_folder(true);
    CHECK(rmdir(folder) == 0, "%s is left", folder);
}

/* A file in memory, in a block of its exact size. */
typedef struct file_image {
    unsigned char *data; /* to be freed */
    size_t bytes;
} file_image;

static inline file_image read_image(const char *path)
{
    file_image image = { NULL, 0 };
    FILE *f = fopen(path, "rb");
    if (f && fseek(f, 0, SEEK_END) == 0) image.bytes = (size_t)ftell(f);
    image.data = malloc(image.bytes ? image.bytes : 1);
    if (f) rewind(f);
    CHECK(f && fread(image.data, 1, image.bytes, f) == image.bytes, "cannot read %s", path);
    if (f) fclose(f);
    return image;
}

static inline void write_image(const char *path, const void *data, size_t bytes)
{
    remove(path); /* writing over a file makes some systems wait for the disk */
    FILE *f = fopen(path, "wb");
    CHECK(f && fwrite(data, 1, bytes, f) == bytes, "cannot write %s", path);
    if (f) fclose(f);
}

static inline bool file_is(const char *path, const char *text)
{
    file_image image = read_image(path);
    const bool same = image.bytes == strlen(text) && memcmp(image.data, text, image.bytes) == 0;
    free(image.data);
    return same;
}

#endif
